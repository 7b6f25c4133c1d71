// Prompt: demonstrations for a model that is not fine-tuned.

import { element, bars } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { command, curl, pythonPrint, pythonScript, PythonTuple } from "../code_samples.js";
import { choice, modelChoice, number, textLine } from "../fields.js";
import { postJson } from "../api.js";
import { missing, modelsWith, sourceOf } from "../models.js";

const REVIEW = "{text} It was {label}.";
const REVIEWS = [
  ["The costumes were noisy.", "terrible"],
  ["The pictures are charming.", "wonderful"],
];
const PLURALS = [
  ["dog", "dogs"],
  ["house", "houses"],
];
const FRIENDLY = "The guide was friendly.";

export const prompt = {
  id: "prompt",
  title: "Prompt",
  lead: "Show a model a few demonstrations, and let it answer without training.",
  build(models) {
    const able = modelsWith(models, "score");
    able.sort((a, b) => b.capabilities.includes("generate") - a.capabilities.includes("generate"));
    if (!able.length) {
      return missing("No served model can be prompted; a decoder such as stories-decoder can.");
    }
    const fields = {
      model: modelChoice(able),
      task: choice("task", "Task", [
        ["classify", "Choose a label"],
        ["seq2seq", "Generate the answer"],
      ]),
      labels: textLine("labels", "Labels", { value: "wonderful, terrible" }),
      instruction: textLine("instruction", "Instruction", { placeholder: "none" }),
      template: textLine("template", "Template", {
        value: REVIEW,
        placeholder: "that of the task",
        hint: "{text} and {label}, or {source} and {target}; \\n is a line break.",
      }),
      examples: demonstrations(REVIEWS),
      query: textLine("query", "Text", { value: FRIENDLY }),
      max_new_tokens: number("max_new_tokens", "Maximum tokens", { min: 1, max: 200, value: 16 }),
    };
    const adapt = () => {
      const labelled = fields.task.value === "classify";
      fields.labels.element.hidden = !labelled;
      fields.max_new_tokens.element.hidden = labelled;
    };
    fields.task.control.addEventListener("change", () => {
      if (["", REVIEW].includes(fields.template.value))
        fields.template.value = fields.task.value === "classify" ? REVIEW : "";
      adapt();
    });
    adapt();
    return tabForm({
      id: "prompt",
      fields: Object.values(fields),
      action: "Answer",
      layout: Object.values(fields).map((field) => field.element),
      examples: {
        "few-shot": {
          task: "classify",
          labels: "wonderful, terrible",
          examples: REVIEWS,
          query: FRIENDLY,
          instruction: "",
          template: REVIEW,
        },
        "zero-shot": {
          task: "classify",
          labels: "wonderful, terrible",
          examples: [],
          query: FRIENDLY,
          instruction: "",
          template: REVIEW,
        },
        generated: {
          task: "seq2seq",
          examples: PLURALS,
          query: "cat",
          instruction: "",
          template: "",
        },
      },
      empty: "The answer and the prompt that the model reads appear here.",
      run: async (values, result, signal) =>
        show(result, await postJson("/playground/prompt", body(values), signal)),
      samples: (values) => samples(sourceOf(models, values.model), values),
    }).element;
  },
};

/** A list of pairs: a text and its answer. */
function demonstrations(pairs) {
  const rows = element("div", { class: "demonstrations" });
  const changed = () => rows.dispatchEvent(new Event("input", { bubbles: true }));
  const add = ([text, answer]) => {
    const input = (value, label) => {
      const made = element("input", {
        type: "text",
        "aria-label": label,
        placeholder: label,
        spellcheck: "false",
      });
      made.value = value;
      return made;
    };
    const line = element(
      "div",
      { class: "demonstration" },
      input(text, "Text"),
      input(answer, "Answer"),
      element(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": "Remove this demonstration",
          title: "Remove",
          onclick: () => {
            line.remove();
            changed();
          },
        },
        "×",
      ),
    );
    rows.append(line);
    return line;
  };
  pairs.forEach(add);
  const more = element(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => {
        add(["", ""]).querySelector("input").focus();
        changed();
      },
    },
    "Add a demonstration",
  );
  return {
    name: "examples",
    element: element(
      "fieldset",
      { class: "field" },
      element("legend", {}, "Demonstrations"),
      rows,
      more,
    ),
    get value() {
      return [...rows.children]
        .map((line) => [...line.querySelectorAll("input")].map((one) => one.value))
        .filter(([text, answer]) => text.trim() && answer.trim());
    },
    set value(given) {
      rows.replaceChildren();
      given.forEach(add);
      changed();
    },
  };
}

const labelsOf = (values) =>
  values.labels
    .split(",")
    .map((label) => label.trim())
    .filter(Boolean);

/** The options of `firth prompt` that are not empty. */
function settings(values) {
  const { task, instruction, template, examples, max_new_tokens } = values;
  const own = task === "classify" ? { labels: labelsOf(values) } : { max_new_tokens };
  return {
    task,
    ...own,
    ...(examples.length ? { examples } : {}),
    ...(instruction ? { instruction } : {}),
    ...(template ? { template } : {}),
  };
}

const body = (values) => ({ model: values.model, query: values.query, ...settings(values) });

function show(result, { prompt: text, answers: [answer], notes }) {
  const scores = Object.entries(answer.scores ?? {}).sort((a, b) => b[1] - a[1]);
  result.replaceChildren(
    element(
      "p",
      { class: "big" },
      answer.label ?? (answer.text.trim() || "The model generated no text."),
    ),
    scores.length
      ? bars(
          scores.map(([name, value]) => ({ name, value })),
          "Labels",
        )
      : "",
    element("h3", {}, "The prompt"),
    element("p", { class: "marked" }, text),
    ...notes.map((note) => element("p", { class: "note" }, note)),
  );
}

function samples(source, values) {
  const { task, labels, examples = [], ...rest } = settings(values);
  const shown = examples.map(([text, answer]) => `${text} => ${answer}`);
  const pairs = examples.length ? examples.map((pair) => new PythonTuple(pair)) : "";
  const keywords = { task, labels, examples: pairs, ...rest };
  return {
    shell: command("prompt", [source, values.query], {
      task,
      labels: labels?.join(","),
      example: shown,
      ...rest,
    }),
    python: pythonScript(pythonPrint("firth.prompt", [source, values.query], keywords, ".answers")),
    curl: curl("/playground/prompt", body(values)),
  };
}
