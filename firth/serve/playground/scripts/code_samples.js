// The same as a command line, in Python and with curl: quoted so that it can be pasted.

import { element, arrowKeys } from "./dom.js";
import { keyRequired, keyVariable, origin } from "./api.js";

const LANGUAGES = { shell: "Command line", python: "Python", curl: "curl" };
const TITLE = "Equivalent code";
const MAX_LINE = 88;
let chosen = "shell"; // on all tabs

/** Quote a word for a POSIX shell. */
export function shellQuote(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Write `firth VERB POSITIONAL… --option value…`; options that are "" are left out. */
export function command(verb, positionals, options = {}) {
  const flags = Object.entries(options).flatMap(([name, value]) => flag(name, value));
  const words = positionals.map(shellQuote);
  const dashed = positionals.some((word) => String(word).startsWith("-"));
  const parts = dashed
    ? [`firth ${verb}`, ...flags, ["--", ...words].join(" ")]
    : [[`firth ${verb}`, ...words].join(" "), ...flags];
  const line = parts.join(" ");
  return line.length <= MAX_LINE ? line : parts.join(" \\\n  ");
}

/** Write the command that predicts rows of several fields. */
export function predictCommand(source, rows) {
  const lines = rows.map((row) => shellQuote(JSON.stringify(row)));
  const input = ["printf '%s\\n'", ...lines].join(" \\\n  ");
  return `${input} |\n  firth predict ${shellQuote(source)} --data - --format jsonl`;
}

function flag(name, value) {
  const option = `--${name.replaceAll("_", "-")}`;
  if (value === true) return [option];
  if (value === false || value === "" || value === undefined) return [];
  return [value].flat().map((one) => `${option} ${shellQuote(one)}`);
}

/** Write a value as a Python literal; the strings of JSON are strings of Python. */
export function pythonLiteral(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (value instanceof PythonTuple) return `(${value.items.map(pythonLiteral).join(", ")})`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([k, v]) => `${pythonLiteral(k)}: ${pythonLiteral(v)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** Write a Python call; keyword arguments that are "" are left out. */
export function pythonCall(name, positionals, keywords = {}) {
  const given = Object.entries(keywords).filter(([, value]) => value !== "" && value !== undefined);
  const parts = [
    ...positionals.map(pythonLiteral),
    ...given.map(([k, v]) => `${k}=${pythonLiteral(v)}`),
  ];
  const line = `${name}(${parts.join(", ")})`;
  return line.length <= MAX_LINE
    ? line
    : `${name}(\n${parts.map((part) => `    ${part},\n`).join("")})`;
}

/** Write a Python call whose result, or an attribute of it, is printed. */
export function pythonPrint(name, positionals, keywords = {}, attribute = "") {
  return `print(${pythonCall(name, positionals, keywords)}${attribute})`;
}

/** A tuple of Python. */
export class PythonTuple {
  constructor(items) {
    this.items = items;
  }
}

/** Write a Python script of lines that use `firth`. */
export function pythonScript(...lines) {
  return ["import firth", "", ...lines].join("\n");
}

/** Write a request with curl; the key is named, never shown. */
export function curl(path, body, { stream = false } = {}) {
  const headers = ["-H 'Content-Type: application/json'"];
  if (keyRequired) headers.unshift(`-H "Authorization: Bearer $${keyVariable}"`);
  const start = `curl ${stream ? "-N " : ""}${shellQuote(`${origin}${path}`)}`;
  const short = JSON.stringify(body);
  const data = shellQuote(short.length <= MAX_LINE ? short : JSON.stringify(body, null, 2));
  return [start, ...headers, `-d ${data}`].join(" \\\n  ");
}

/** A box that shows one of the languages, with a button that copies it. */
export function samplesBox(id) {
  const code = element("code"),
    pre = element(
      "pre",
      {
        tabindex: 0,
        role: "tabpanel",
        id: `${id}-code`,
        "aria-label": "Code",
      },
      code,
    );
  let texts = {};
  const tabs = Object.entries(LANGUAGES).map(([name, label]) =>
    element(
      "button",
      {
        type: "button",
        role: "tab",
        "data-language": name,
        "aria-controls": `${id}-code`,
        onclick: () => choose(name),
      },
      label,
    ),
  );
  const show = () => {
    for (const tab of tabs) {
      const selected = tab.dataset.language === chosen;
      tab.setAttribute("aria-selected", selected);
      tab.setAttribute("tabindex", selected ? 0 : -1);
    }
    code.textContent = texts[chosen] ?? "";
  };
  const choose = (name) => {
    chosen = name;
    document.dispatchEvent(new Event("language"));
  };
  document.addEventListener("language", show);
  const list = element(
    "div",
    {
      role: "tablist",
      "aria-label": "Language",
      onkeydown: (event) =>
        arrowKeys(event, tabs, (place) => {
          choose(tabs[place].dataset.language);
          tabs[place].focus();
        }),
    },
    tabs,
  );
  const box = element(
    "section",
    { class: "samples", "aria-label": TITLE },
    element(
      "div",
      { class: "samples-bar" },
      element("h3", {}, TITLE),
      list,
      copyButton(() => code.textContent),
    ),
    pre,
  );
  return {
    element: box,
    update: (made) => {
      texts = made;
      show();
    },
  };
}

function copyButton(text) {
  const button = element("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return button;
}

/** Copy a text; a page that is neither local nor on https has no clipboard. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
