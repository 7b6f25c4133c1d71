// Masking: what every pre-training objective makes of a sentence.

import { element } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { command, curl, pythonPrint, pythonScript } from "../code_samples.js";
import { choice, number, row, slider, textArea } from "../fields.js";
import { postJson } from "../api.js";
import { modelsWith, sourceOf } from "../models.js";

const ALL = "";
const OBJECTIVES = document.body.dataset.objectives.split(" ");
const ROLES = {
  hidden: "hidden",
  changed: "replaced by another token",
  kept: "selected, but unchanged",
  prefix: "prefix",
  special: "special token",
};

export const masking = {
  id: "masking",
  title: "Masking",
  lead: "See what each pre-training objective hides of a sentence, and what must be predicted.",
  build(models) {
    const able = modelsWith(models, "tokenize");
    const tokenizers = [
      ["words", "every word is one token"],
      ...able.map((model) => [model.id, model.id]),
    ];
    const fields = {
      text: textArea("text", "Text", {
        rows: 3,
        value: "The quick brown fox jumps over the lazy dog. It was a fine day.",
      }),
      tokenizer: choice("tokenizer", "Tokenizer", tokenizers),
      objective: choice("objective", "Objective", [
        [ALL, "all"],
        ...OBJECTIVES.map((name) => [name, name]),
      ]),
      mask_prob: slider("mask_prob", "Fraction", {
        min: 0,
        max: 0.9,
        step: 0.05,
        value: 0,
        words: (v) => (v ? `${Math.round(100 * v)}%` : "default"),
      }),
      seed: number("seed", "Seed", { min: 0, max: 2 ** 31 - 1, value: 0 }),
    };
    const made = tabForm({
      id: "masking",
      fields: Object.values(fields),
      action: "Show",
      wide: true,
      layout: [
        fields.text.element,
        row(fields.tokenizer, fields.objective, fields.mask_prob, fields.seed),
      ],
      empty: "The input and the targets of each objective appear here.",
      run: async (values, result, signal) => {
        show(result, await postJson("/playground/masking", body(values), signal));
      },
      samples: (values) => samples(models, values),
    });
    for (const name of ["objective", "tokenizer", "mask_prob", "seed"]) {
      fields[name].control.addEventListener("change", () => made.submit());
    }
    return made.element;
  },
};

function body(values) {
  const { text, tokenizer, seed, mask_prob, objective } = values;
  const how = tokenizer === "words" ? {} : { model: tokenizer };
  return {
    text,
    seed,
    ...how,
    ...(mask_prob ? { mask_prob } : {}),
    ...(objective ? { objectives: [objective] } : {}),
  };
}

function show(result, { examples, missing, about }) {
  const groups = new Map();
  for (const example of examples) {
    if (!groups.has(example.objective)) groups.set(example.objective, []);
    groups.get(example.objective).push(example);
  }
  const sections = [...groups].map(([name, own]) =>
    element(
      "article",
      { class: "objective" },
      element("h3", {}, name),
      element("p", {}, about[name].text, element("small", {}, ` ${about[name].source}`)),
      own.map(exampleView),
    ),
  );
  const others = Object.entries(missing).map(([name, why]) =>
    element("p", { class: "note" }, `${name} cannot be shown: ${why}`),
  );
  result.replaceChildren(legend(), ...sections, ...others);
}

function legend() {
  return element(
    "p",
    { class: "roles" },
    Object.entries(ROLES).map(([role, text]) => element("span", { class: `piece ${role}` }, text)),
    element("span", { class: "piece target" }, "target"),
  );
}

function exampleView(example) {
  const twoStacks = example.decoder.length > 0;
  return element(
    "div",
    { class: "example" },
    example.variant ? element("h4", {}, example.variant) : null,
    twoStacks ? tokens("encoder", example.reads, {}) : null,
    tokens(
      twoStacks ? "decoder" : "input",
      twoStacks ? example.decoder : example.reads,
      targets(example),
    ),
    example.note ? element("p", { class: "note" }, example.note) : null,
  );
}

/** The targets at each position; objectives with several predictions name them. */
function targets({ predicts, positions }) {
  const several = Object.keys(predicts).length > 1,
    at = {};
  for (const [what, words] of Object.entries(predicts)) {
    words.forEach((word, i) => {
      (at[positions[what][i]] ??= []).push(several ? `${what}: ${word}` : word);
    });
  }
  return at;
}

/** A row of tokens, each above its targets. */
function tokens(label, reads, at) {
  return element(
    "div",
    { class: "pieces" },
    element("span", { class: "side" }, label),
    element(
      "ol",
      {},
      reads.map(({ token, role }, place) =>
        element(
          "li",
          {},
          element("span", { class: `piece ${role}` }, token),
          (at[place] ?? []).map((target) => element("span", { class: "piece target" }, target)),
        ),
      ),
    ),
  );
}

function samples(models, values) {
  const { text, seed, objective } = values,
    mask_prob = values.mask_prob || "";
  const tokenizer = values.tokenizer === "words" ? "words" : sourceOf(models, values.tokenizer);
  const names = objective ? [[objective]] : [];
  return {
    shell: command("objectives", [], { text, tokenizer, objective, mask_prob, seed }),
    python: pythonScript(
      pythonPrint("firth.show_objectives", [text, ...names], { tokenizer, mask_prob, seed }),
    ),
    curl: curl("/playground/masking", body(values)),
  };
}
