// Generate: a live stream of tokens, with one method or several side by side.

import { element } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { command, curl, pythonPrint, pythonScript } from "../code_samples.js";
import { choice, modelChoice, number, row, slider, textArea } from "../fields.js";
import { postJson, postStream } from "../api.js";
import { missing, modelsWith, sourceOf } from "../models.js";
import { TokenText, tokensOf } from "../token_text.js";

const ALTERNATIVES = 5; // per token
const BEAMS = 4;
const STRATEGIES = {
  // those of `firth generate --show-strategies`
  greedy: { temperature: 0 },
  "temperature 0.5": { temperature: 0.5 },
  "temperature 1.0": { temperature: 1 },
  "temperature 2.0": { temperature: 2 },
};
const FINISHED = { stop: "ended by itself", length: "reached the maximum length" };

export const generate = {
  id: "generate",
  title: "Generate",
  lead: "Continue a text, token by token. Point at a token to see what else was likely.",
  build(models) {
    const able = modelsWith(models, "generate");
    if (!able.length) {
      return missing("No served model generates text; a decoder such as stories-decoder does.");
    }
    const fields = {
      model: modelChoice(able),
      prompt: textArea("prompt", "Prompt", { value: "Once upon a time there was a" }),
      mode: choice("mode", "Method", [
        ["one", "These settings"],
        ["many", "Strategies side by side"],
      ]),
      temperature: slider("temperature", "Temperature", {
        min: 0,
        max: 2,
        step: 0.05,
        value: 0.8,
        words: (v) => (v ? v.toFixed(2) : "0 (greedy)"),
      }),
      top_k: slider("top_k", "Top-k", {
        min: 0,
        max: 100,
        step: 1,
        value: 0,
        words: (v) => (v ? String(v) : "all tokens"),
      }),
      top_p: slider("top_p", "Top-p", {
        min: 0.05,
        max: 1,
        step: 0.05,
        value: 1,
        words: (v) => (v < 1 ? v.toFixed(2) : "1 (all tokens)"),
      }),
      max_tokens: number("max_tokens", "Maximum tokens", { min: 1, max: 1000, value: 60 }),
      seed: number("seed", "Seed", { min: 0, max: 2 ** 31 - 1, value: 0 }),
    };
    const sampling = element(
      "div",
      { class: "group" },
      fields.temperature.element,
      fields.top_k.element,
      fields.top_p.element,
    );
    fields.mode.control.addEventListener("change", () => {
      sampling.hidden = fields.mode.value === "many";
    });
    return tabForm({
      id: "generate",
      fields: Object.values(fields),
      action: "Generate",
      layout: [
        fields.model.element,
        fields.prompt.element,
        fields.mode.element,
        sampling,
        row(fields.max_tokens, fields.seed),
      ],
      examples: {
        "a story": { prompt: "Once upon a time there was a" },
        "a dialogue": { prompt: '"Is it going to rain?" Mei asked.' },
      },
      empty: "The text appears here as it is generated.",
      run: (values, result, signal) =>
        values.mode === "one"
          ? runOne(values, result, signal)
          : runStrategies(values, result, signal),
      samples: (values) => samples(models, values),
    }).element;
  },
};

function body(values, chosen = {}) {
  const { model, prompt, max_tokens, seed } = values;
  const sampling = values.mode === "many" ? chosen : sampled(values);
  return { model, prompt, max_tokens, seed, ...sampling, logprobs: ALTERNATIVES };
}

/** The sampling options that differ from their default. */
function sampled({ temperature, top_k, top_p }) {
  if (!temperature) return { temperature: 0 };
  return { temperature, ...(top_k ? { top_k } : {}), ...(top_p < 1 ? { top_p } : {}) };
}

async function runOne(values, result, signal) {
  const card = new Card("", values.prompt);
  result.replaceChildren(card.element, key());
  await card.stream(body(values), signal);
}

/** Stream every strategy at the same time; beam search has its text at the end. */
async function runStrategies(values, result, signal) {
  const cards = Object.keys(STRATEGIES).map((name) => new Card(name, values.prompt));
  const beams = new Card(`${BEAMS} beams`, values.prompt);
  result.replaceChildren(
    element(
      "div",
      { class: "cards" },
      [...cards, beams].map((card) => card.element),
    ),
    key(),
  );
  const streams = Object.values(STRATEGIES).map((chosen, i) =>
    cards[i].stream(body(values, chosen), signal),
  );
  const { model, prompt, max_tokens } = values;
  await Promise.all([
    ...streams,
    beams.complete({ model, prompt, max_tokens, beams: BEAMS }, signal),
  ]);
}

/** One completion, as it grows. */
class Card {
  constructor(title, prompt) {
    this.text = new TokenText(prompt);
    this.note = element("p", { class: "note" }, "…");
    this.element = element(
      "article",
      { class: "card" },
      title ? element("h3", {}, title) : null,
      this.text.element,
      this.note,
    );
  }

  async stream(request, signal) {
    this.element.setAttribute("aria-busy", "true");
    let finish = "",
      logprobs = [];
    try {
      for await (const event of postStream("/v1/completions", request, signal)) {
        const [choice] = event.choices;
        if (!choice) continue;
        for (const token of tokensOf(choice)) this.text.add(token);
        logprobs.push(...choice.logprobs.token_logprobs); // also of the end token
        finish = choice.finish_reason ?? finish;
      }
      this.finish(finish, logprobs);
    } catch (error) {
      this.note.textContent = "stopped";
      throw error;
    } finally {
      this.element.removeAttribute("aria-busy");
    }
  }

  async complete(request, signal) {
    const { text, tokens, logprob, finish_reason } = await postJson(
      "/playground/beam",
      request,
      signal,
    );
    this.text.addText(text);
    this.note.textContent = describe(finish_reason, tokens, logprob);
  }

  finish(reason, logprobs) {
    this.note.textContent = describe(
      reason,
      logprobs.length,
      logprobs.reduce((sum, one) => sum + one, 0),
    );
  }
}

/** Count the tokens; the mean log-probability makes texts of different length comparable. */
function describe(reason, tokens, logprob) {
  const mean = tokens
    ? `, mean log-probability ${(logprob / tokens).toFixed(2).replace("-", "−")}`
    : "";
  return `${tokens} ${tokens === 1 ? "token" : "tokens"}${mean}, ${FINISHED[reason] ?? reason}`;
}

/** What the colours of tokens mean. */
function key() {
  return element(
    "p",
    { class: "scale" },
    "probability of a token: 0",
    element("i", { class: "one" }),
    "1",
  );
}

function samples(models, values) {
  const source = sourceOf(models, values.model),
    { prompt, seed } = values,
    max_new_tokens = values.max_tokens;
  if (values.mode === "many") {
    const methods = [...Object.values(STRATEGIES).map(options), { method: "beam", beams: BEAMS }];
    const calls = methods.map((method) =>
      pythonPrint("firth.generate", [source, prompt], { ...method, max_new_tokens, seed }),
    );
    return {
      shell: command("generate", [source, prompt], { show_strategies: true, max_new_tokens, seed }),
      python: pythonScript(...calls),
      curl: Object.values(STRATEGIES)
        .map((chosen) => curl("/v1/completions", body(values, chosen)))
        .join("\n"),
    };
  }
  const how = { ...options(sampled(values)), max_new_tokens, seed };
  return {
    shell: command("generate", [source, prompt], how),
    python: pythonScript(pythonPrint("firth.generate", [source, prompt], how)),
    curl: curl("/v1/completions", { ...body(values), stream: true }, { stream: true }),
  };
}

/** The options of `firth generate` for those of a request. */
function options(sampling) {
  return sampling.temperature ? { method: "sample", ...sampling } : { method: "greedy" };
}
