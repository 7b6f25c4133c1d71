// Answer: the part of a text that answers a question.

import { element } from "../dom.js";
import { predictCommand, pythonPrint, pythonScript } from "../code_samples.js";
import { textArea, textLine } from "../fields.js";
import { predictionTask } from "./prediction_task.js";

export const answer = predictionTask({
  id: "answer",
  title: "Answer",
  missing: "No served model finds answers; one from `firth finetune MODEL --task span` does.",
  empty: "The text appears here, with the answer marked.",
  makeFields: () => [
    textLine("question", "Question", { value: "Where did Diego live?" }),
    textArea("context", "Text with the answer", {
      rows: 6,
      value: "Diego Turner, a greedy boy from Stonebridge, liked drawing. He was seven years old.",
    }),
  ],
  body: ({ model, question, context }) => ({ model, question, context }),
  show,
  samples,
});

function show(result, { context }, { predictions: [found] }) {
  const text = Array.from(context); // the offsets count code points, as in Python
  const part = (begin, end) => text.slice(begin, end).join("");
  result.replaceChildren(
    element("p", { class: "big" }, found.answer || "The text has no answer."),
    element(
      "p",
      { class: "marked" },
      part(0, found.begin),
      found.answer ? element("mark", {}, part(found.begin, found.end)) : "",
      part(found.end),
    ),
  );
}

function samples(source, { question, context }) {
  const row = { question, context };
  return {
    shell: predictCommand(source, [row]),
    python: pythonScript(pythonPrint("firth.predict", [source, [row]], {}, ".answers")),
  };
}
