// Embed & search: the lines nearest to a query, and all of them in two dimensions.

import { element } from "../dom.js";
import { tabForm } from "../tab_form.js";
import {
  command,
  curl,
  pythonCall,
  pythonPrint,
  pythonScript,
  shellQuote,
} from "../code_samples.js";
import { modelChoice, textArea, textLine } from "../fields.js";
import { postJson } from "../api.js";
import { missing, modelsWith, sourceOf } from "../models.js";
import { principalComponents } from "../projection.js";
import { scatter } from "../scatter.js";

const LINES = [
  "The dog ran after the ball in the park.",
  "A cat slept on the warm roof.",
  "The soup was cold and the bread was old.",
  "She baked a cake for the party.",
  "It rained all day and they had no umbrella.",
  "The sun was shining over the hills.",
  "He mended the roof of the old house.",
  "They painted the door of the shed blue.",
];

const MAX_POINTS = 300; // of the picture

export const search = {
  id: "search",
  title: "Embed & search",
  lead: "Embed texts as vectors, find the nearest to a query, and see all in two dimensions.",
  build(models) {
    const able = modelsWith(models, "embed");
    if (!able.length) {
      return missing("No served model embeds texts; an encoder such as stories-encoder does.");
    }
    const model = modelChoice(able),
      query = textLine("query", "Query", { value: "bad weather" });
    const texts = textArea("texts", "Texts", {
      rows: 9,
      value: LINES.join("\n"),
      hint: "One on each line.",
    });
    return tabForm({
      id: "search",
      fields: [model, texts, query],
      layout: [model.element, texts.element, query.element],
      action: "Search",
      empty: "The texts appear here, the nearest first.",
      run: async (values, result, signal) => {
        const [ranking, embedded] = await Promise.all([
          postJson("/v1/rerank", rerankBody(values), signal),
          postJson("/v1/embeddings", embedBody(values), signal),
        ]);
        show(result, values, ranking.results, embedded.data);
      },
      samples: (values) => samples(sourceOf(models, values.model), values),
    }).element;
  },
};

const lines = (values) => values.texts.split("\n").filter((line) => line.trim());

const rerankBody = (values) => ({
  model: values.model,
  query: values.query,
  documents: lines(values),
  return_documents: false,
});

/** The texts of the picture; the query is the last. */
const pictured = (values) => [...lines(values).slice(0, MAX_POINTS), values.query];
const embedBody = (values) => ({ model: values.model, input: pictured(values), truncate: true });

function show(result, values, ranked, embedded) {
  const texts = lines(values);
  const picture = drawPicture(pictured(values), embedded, result.clientWidth, (i) => highlight(i));
  const rows = new Map(ranked.map((hit) => [hit.index, hitRow(hit, texts, (i) => highlight(i))]));
  const highlight = (chosen) => {
    picture.highlight(chosen);
    for (const [i, row] of rows) row.classList.toggle("chosen", i === chosen);
  };
  result.replaceChildren(
    element("h3", {}, "Similarity with the query"),
    element("ol", { class: "hits" }, [...rows.values()]),
    picture.element,
  );
}

function hitRow({ index, relevance_score: score }, texts, select) {
  const bar = element("b", { style: `width:${100 * Math.max(0, score)}%` });
  return element(
    "li",
    { onpointerenter: () => select(index) },
    element("span", { class: "track" }, bar),
    element("span", { class: "score" }, score.toFixed(3)),
    element("span", {}, texts[index]),
  );
}

function drawPicture(texts, embedded, width, select) {
  const vectors = embedded.map((one) => one.embedding);
  const query = texts.length - 1;
  const points = texts.map((text, i) => ({
    text: i === query ? `query: ${text}` : text,
    query: i === query,
  }));
  const projected = principalComponents(vectors.slice(0, query), vectors);
  return scatter(points, projected, Math.min(640, Math.max(280, width - 50)), select);
}

function samples(source, values) {
  const texts = lines(values),
    { query } = values;
  const file = ["printf '%s\\n'", ...texts.map(shellQuote), "> texts.txt"].join(" \\\n  ");
  return {
    shell: `${file}\n${command("search", [source, "texts.txt", query])}`,
    python: pythonScript(
      `model = ${pythonCall("firth.load", [source])}`,
      pythonPrint("model.search", [texts, query]),
    ),
    curl: `${curl("/v1/rerank", rerankBody(values))}\n${curl("/v1/embeddings", embedBody(values))}`,
  };
}
