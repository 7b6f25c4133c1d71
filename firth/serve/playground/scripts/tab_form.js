// What all tabs share: a form, a result, errors in words, and the samples of code.

import { element, withCode } from "./dom.js";
import { RequestError } from "./api.js";
import { samplesBox } from "./code_samples.js";

const MIN_VISIBLE = 160; // pixels of the result that must be seen when it comes

/**
 * Build a tab.
 *
 * `fields` are read into the values that `run(values, result, signal)` and `samples(values)` get;
 * `layout` are the elements of the form; `examples` are {label: {field: value}} to start from.
 * Return the element of the tab, and the function that the button calls.
 */
export function tabForm({
  id,
  fields,
  layout,
  run,
  samples,
  action,
  examples = {},
  empty,
  wide = false,
}) {
  const result = element(
    "div",
    { class: "result", role: "region", "aria-label": "Result", "aria-live": "polite" },
    element("p", { class: "empty" }, empty),
  );
  const failure = element("p", { class: "failure", role: "alert", hidden: true });
  const time = element("span", { class: "time" });
  const start = element("button", { class: "primary", title: "Ctrl+Enter" }, action);
  const stop = element("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const box = samplesBox(id);
  const values = () => Object.fromEntries(fields.map((field) => [field.name, field.value]));
  let running = null;

  async function submit() {
    running?.abort();
    const own = (running = new AbortController());
    const began = performance.now();
    failure.hidden = true;
    time.textContent = "";
    form.setAttribute("aria-busy", "true");
    stop.hidden = false;
    if (result.getBoundingClientRect().top > innerHeight - MIN_VISIBLE)
      result.scrollIntoView({ block: "start" });
    try {
      await run(values(), result, own.signal);
      time.textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`;
    } catch (error) {
      if (error.name !== "AbortError") fail(error);
    } finally {
      if (running === own) {
        form.removeAttribute("aria-busy");
        stop.hidden = true;
      }
    }
  }

  function fail(error) {
    if (!(error instanceof RequestError)) throw error; // a mistake of this page
    failure.replaceChildren(...withCode(error.message));
    failure.hidden = false;
    failure.scrollIntoView({ block: "nearest" });
  }

  const update = () => box.update(samples(values()));
  const chips = Object.entries(examples).map(([label, given]) =>
    element(
      "button",
      {
        type: "button",
        class: "chip",
        onclick: () => {
          for (const field of fields) if (field.name in given) field.value = given[field.name];
          update();
        },
      },
      label,
    ),
  );
  stop.addEventListener("click", () => running?.abort());
  const form = element(
    "form",
    {
      class: "form",
      oninput: update,
      onchange: update,
      onsubmit: (event) => {
        event.preventDefault();
        submit();
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          submit();
        }
      },
    },
    layout,
    chips.length ? element("div", { class: "chips" }, element("span", {}, "Try"), chips) : null,
    element("div", { class: "actions" }, start, stop, time),
    failure,
  );
  update();
  return {
    element: element(
      "div",
      { class: "tab-content" },
      element("div", { class: wide ? "tab-form wide" : "tab-form" }, form, result),
      box.element,
    ),
    submit,
  };
}
