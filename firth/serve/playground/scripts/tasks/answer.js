// Answer: the part of a text that answers a question.

import { element } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { curl, predictCommand, pythonPrint, pythonScript } from "../code_samples.js";
import { modelChoice, textArea, textLine } from "../fields.js";
import { postJson } from "../api.js";
import { sourceOf } from "../models.js";

export const answer = {
  id: "answer",
  title: "Answer",
  missing: "No served model finds answers; one from `firth finetune MODEL --task span` does.",
  build(models) {
    const model = modelChoice(models);
    const question = textLine("question", "Question", { value: "Where did Diego live?" });
    const context = textArea("context", "Text with the answer", {
      rows: 6,
      value: "Diego Turner, a greedy boy from Stonebridge, liked drawing. He was seven years old.",
    });
    return tabForm({
      id: "answer",
      fields: [model, question, context],
      action: "Answer",
      layout: [model.element, question.element, context.element],
      empty: "The text appears here, with the answer marked.",
      run: async (values, result, signal) =>
        show(result, values.context, await postJson("/answer", body(values), signal)),
      samples: (values) => samples(sourceOf(models, values.model), values),
    }).element;
  },
};

const body = ({ model, question, context }) => ({ model, question, context });

function show(result, context, { predictions: [found] }) {
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

function samples(source, values) {
  const row = { question: values.question, context: values.context };
  return {
    shell: predictCommand(source, [row]),
    python: pythonScript(pythonPrint("firth.predict", [source, [row]], {}, ".answers")),
    curl: curl("/answer", body(values)),
  };
}
