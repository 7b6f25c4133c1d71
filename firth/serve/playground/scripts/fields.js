// Fields of a form. Each has a name, an element, and a value.

import { element } from "./dom.js";

let count = 0;

function labelled(label, control, hint = "", beside = "") {
  const id = `field-${++count}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return element(
    "div",
    { class: "field" },
    element("div", { class: "label" }, element("label", { for: id }, label), beside),
    control,
    hint ? element("p", { class: "hint", id: `${id}-hint` }, hint) : null,
  );
}

function textLike(name, control, label, { value = "", hint } = {}) {
  control.value = value;
  const whole = labelled(label, control, hint);
  return {
    name,
    control,
    element: whole,
    get value() {
      return control.value;
    },
    set value(text) {
      control.value = text;
      control.dispatchEvent(new Event("input", { bubbles: true }));
    },
  };
}

export function textArea(name, label, { rows = 4, placeholder = "", ...rest } = {}) {
  return textLike(
    name,
    element("textarea", { rows, placeholder, spellcheck: "false" }),
    label,
    rest,
  );
}

export function textLine(name, label, { placeholder = "", ...rest } = {}) {
  const control = element("input", {
    type: "text",
    placeholder,
    spellcheck: "false",
    autocomplete: "off",
  });
  return textLike(name, control, label, rest);
}

export function number(name, label, { min, max, value }) {
  const control = element("input", { type: "number", min, max, step: 1, inputmode: "numeric" });
  control.value = value;
  return {
    name,
    control,
    element: labelled(label, control),
    get value() {
      return Math.max(min, Math.min(max, Math.round(Number(control.value) || 0)));
    },
    set value(given) {
      control.value = given;
      control.dispatchEvent(new Event("input", { bubbles: true }));
    },
  };
}

/** A slider with its value beside the label; `words` names special values. */
export function slider(name, label, { min, max, step, value, words }) {
  const control = element("input", { type: "range", min, max, step });
  control.value = value;
  const shown = element("output");
  const show = () => {
    shown.textContent = words(control.valueAsNumber);
    control.setAttribute("aria-valuetext", shown.textContent);
  };
  control.addEventListener("input", show);
  show();
  return {
    name,
    control,
    element: labelled(label, control, "", shown),
    get value() {
      return control.valueAsNumber;
    },
    set value(given) {
      control.value = given;
      control.dispatchEvent(new Event("input", { bubbles: true }));
    },
  };
}

/** A list to choose from; options are [value, text]. */
export function choice(name, label, options) {
  const control = element(
    "select",
    {},
    options.map(([one, text]) => element("option", { value: one }, text)),
  );
  return {
    name,
    control,
    element: labelled(label, control),
    get value() {
      return control.value;
    },
    set value(given) {
      control.value = given;
      control.dispatchEvent(new Event("change", { bubbles: true }));
    },
  };
}

/** The models that can do something. */
export function modelChoice(models) {
  return choice(
    "model",
    "Model",
    models.map((model) => [model.id, model.id]),
  );
}

/** Fields beside each other. */
export function row(...fields) {
  return element(
    "div",
    { class: "fields" },
    fields.map((field) => field.element),
  );
}
