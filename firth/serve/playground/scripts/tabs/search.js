// Embed & search: the lines nearest to a query, and all of them in two dimensions.

import { element } from "../dom.js";
import { bench } from "../bench.js";
import { command, curl, pythonCall, pythonScript, shellQuote } from "../code_samples.js";
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
    return bench({
      id: "search",
      fields: [model, texts, query],
      layout: [model.element, texts.element, query.element],
      action: "Search",
      empty: "The texts appear here, the nearest first.",
      run: async (values, result, signal) => {
        const { data } = await postJson("/v1/embeddings", body(values), signal);
        show(
          result,
          [...lines(values), values.query],
          data.map((one) => one.embedding),
        );
      },
      samples: (values) => samples(sourceOf(models, values.model), values),
    }).element;
  },
};

const lines = (values) => values.texts.split("\n").filter((line) => line.trim());
const body = (values) => ({ model: values.model, input: [...lines(values), values.query] });

function show(result, texts, vectors) {
  const query = texts.length - 1;
  const ranked = vectors
    .slice(0, query)
    .map((vector, i) => ({ i, cosine: cosine(vector, vectors[query]) }));
  ranked.sort((a, b) => b.cosine - a.cosine);
  const points = texts.map((text, i) => ({
    text: i === query ? `query: ${text}` : text,
    query: i === query,
  }));
  const picture = scatter(
    points,
    principalComponents(vectors.slice(0, query), vectors),
    Math.min(640, Math.max(280, result.clientWidth - 50)),
    (i) => highlight(i),
  );
  const rows = new Map(
    ranked.map(({ i, cosine: value }) => [
      i,
      element(
        "li",
        {
          onpointerenter: () => highlight(i),
        },
        element(
          "span",
          { class: "track" },
          element("b", { style: `width:${100 * Math.max(0, value)}%` }),
        ),
        element("span", { class: "cosine" }, value.toFixed(3)),
        element("span", {}, texts[i]),
      ),
    ]),
  );
  const highlight = (chosen) => {
    picture.highlight(chosen);
    for (const [i, row] of rows) row.classList.toggle("chosen", i === chosen);
  };
  result.replaceChildren(
    element("h3", {}, "Cosine similarity with the query"),
    element("ol", { class: "hits" }, [...rows.values()]),
    picture.element,
  );
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
}

function samples(source, values) {
  const texts = lines(values),
    { query } = values;
  const file = ["printf '%s\\n'", ...texts.map(shellQuote), "> texts.txt"].join(" \\\n  ");
  return {
    shell: `${file}\n${command("search", [source, "texts.txt", query])}`,
    python: pythonScript(
      `model = ${pythonCall("firth.load", [source])}`,
      pythonCall("model.search", [texts, query]),
    ),
    curl: curl("/v1/embeddings", body(values)),
  };
}
