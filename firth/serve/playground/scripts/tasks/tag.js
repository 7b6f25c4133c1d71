// Tag: marked names, or the tag of each word.

import { element, percent } from "../dom.js";
import { command, pythonPrint, pythonScript } from "../code_samples.js";
import { textArea } from "../fields.js";
import { predictionTask } from "./prediction_task.js";

const COLOURS = ["m-a", "m-b", "m-c", "m-d"];

export const tag = predictionTask({
  id: "tag",
  title: "Tag",
  missing: "No served model tags words; one from `firth finetune MODEL --task tag` does.",
  empty: "The text appears here, with the tags of its words.",
  makeFields: () => [
    textArea("texts", "Text", { value: "Diego Turner from Stonebridge met Mei at the park." }),
  ],
  body: (values) => ({ model: values.model, texts: [values.texts] }),
  show,
  samples,
});

function show(result, { texts: text }, { predictions: [found] }) {
  const spans = found.entities ?? found.tags.map((type, i) => ({ type, begin: i, end: i + 1 }));
  const kinds = [...new Set(spans.map((span) => span.type))];
  const rows = (found.entities ?? []).map((one) =>
    element(
      "tr",
      {},
      element("td", {}, one.text),
      element("td", {}, one.type),
      element("td", {}, percent(one.score)),
    ),
  );
  result.replaceChildren(
    element("p", { class: "marked" }, ...marked(text, found.words, spans, kinds)),
    found.entities && !rows.length
      ? element("p", { class: "note" }, "The model found no name in this text.")
      : "",
    rows.length ? table(rows) : "",
  );
}

function table(rows) {
  const head = ["name", "type", "probability"].map((text) => element("th", { scope: "col" }, text));
  return element(
    "div",
    { class: "table" },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)),
  );
}

/** The text with its spans marked; `begin` and `end` of a span count words. */
function marked(text, words, spans, kinds) {
  const places = wordPlaces(text, words),
    pieces = [];
  let done = 0;
  for (const { type, begin, end } of spans) {
    const [start] = places[begin],
      [, stop] = places[end - 1];
    const colour = COLOURS[kinds.indexOf(type) % COLOURS.length];
    const name = element("small", {}, type);
    pieces.push(
      text.slice(done, start),
      element("mark", { class: colour }, text.slice(start, stop), name),
    );
    done = stop;
  }
  return [...pieces, text.slice(done)];
}

/** Find the first and last offset of each word in the text. */
function wordPlaces(text, words) {
  let at = 0;
  return words.map((word) => {
    const start = Math.max(at, text.indexOf(word, at));
    at = start + word.length;
    return [start, at];
  });
}

function samples(source, { texts }) {
  return {
    shell: command("predict", [source, texts]),
    python: pythonScript(pythonPrint("firth.predict", [source, texts], {}, ".answers")),
  };
}
