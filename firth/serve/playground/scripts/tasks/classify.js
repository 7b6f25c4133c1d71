// Classify: the probability of each label.

import { element, bars } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { command, curl, predictCommand, pythonPrint, pythonScript } from "../code_samples.js";
import { modelChoice, textArea } from "../fields.js";
import { postJson } from "../api.js";
import { sourceOf } from "../models.js";

const PAIR = "||"; // between the two texts of a line

export const classify = {
  id: "classify",
  title: "Classify",
  missing: "No served model classifies; one from `firth finetune MODEL --task classify` does.",
  build(models) {
    const model = modelChoice(models);
    const texts = textArea("texts", "Texts", {
      rows: 5,
      value: "What a delightful visit.\nThe soup was cold and the waiter was rude.",
      hint: `One on each line; a pair as “first text ${PAIR} second text”.`,
    });
    return tabForm({
      id: "classify",
      fields: [model, texts],
      layout: [model.element, texts.element],
      action: "Classify",
      empty: "The probability of each label appears here.",
      run: async (values, result, signal) =>
        show(result, lines(values), await postJson("/classify", body(values), signal)),
      samples: (values) => samples(sourceOf(models, values.model), values),
    }).element;
  },
};

const lines = (values) => values.texts.split("\n").filter((line) => line.trim());
const body = (values) => ({ model: values.model, texts: lines(values).map(textOrPair) });

function textOrPair(line) {
  const [first, second] = line.split(PAIR);
  return second === undefined ? line : [first.trim(), second.trim()];
}

function show(result, texts, { predictions }) {
  result.replaceChildren(
    ...predictions.map((one, place) =>
      element("article", { class: "card" }, element("p", {}, texts[place]), labels(one)),
    ),
  );
}

function labels(prediction) {
  if ("number" in prediction) return element("p", { class: "big" }, prediction.number.toFixed(3));
  const rows = Object.entries(prediction.scores).sort((a, b) => b[1] - a[1]);
  return bars(
    rows.map(([name, value]) => ({ name, value })),
    "Labels",
  );
}

function samples(source, values) {
  const { texts } = body(values);
  const request = curl("/classify", body(values));
  if (texts.some(Array.isArray)) {
    const rows = texts.map((pair) => ({ text_a: pair[0], text_b: pair[1] }));
    const python = pythonScript(pythonPrint("firth.predict", [source, rows], {}, ".answers"));
    return { shell: predictCommand(source, rows), python, curl: request };
  }
  return {
    shell: command("predict", [source, ...texts]),
    python: pythonScript(pythonPrint("firth.predict", [source, texts], {}, ".answers")),
    curl: request,
  };
}
