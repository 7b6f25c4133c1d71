// Classify: the probability of each label.

import { element, bars } from "../dom.js";
import { command, predictCommand, pythonPrint, pythonScript } from "../code_samples.js";
import { textArea } from "../fields.js";
import { predictionTask } from "./prediction_task.js";

const PAIR = "||"; // between the two texts of a line

export const classify = predictionTask({
  id: "classify",
  title: "Classify",
  missing: "No served model classifies; one from `firth finetune MODEL --task classify` does.",
  empty: "The probability of each label appears here.",
  makeFields: () => [
    textArea("texts", "Texts", {
      rows: 5,
      value: "What a delightful visit.\nThe soup was cold and the waiter was rude.",
      hint: `One on each line; a pair as “first text ${PAIR} second text”.`,
    }),
  ],
  body: (values) => ({ model: values.model, texts: inputs(values) }),
  show,
  samples,
});

const lines = (values) => values.texts.split("\n").filter((line) => line.trim());
const inputs = (values) => lines(values).map(textOrPair);

function textOrPair(line) {
  const [first, second] = line.split(PAIR);
  return second === undefined ? line : [first.trim(), second.trim()];
}

function show(result, values, { predictions }) {
  const texts = lines(values);
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

/** Texts and pairs have other columns, so they are predicted one after the other. */
function samples(source, values) {
  const texts = inputs(values).filter((one) => !Array.isArray(one));
  const pairs = inputs(values).filter(Array.isArray);
  const rows = pairs.map(([text_a, text_b]) => ({ text_a, text_b }));
  const given = [texts, rows].filter((group) => group.length);
  const shell = [
    ...(texts.length ? [command("predict", [source, ...texts])] : []),
    ...(rows.length ? [predictCommand(source, rows)] : []),
  ];
  const python = given.map((group) =>
    pythonPrint("firth.predict", [source, group], {}, ".answers"),
  );
  return { shell: shell.join("\n"), python: pythonScript(...python) };
}
