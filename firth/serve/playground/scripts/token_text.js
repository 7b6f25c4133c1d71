// A generated text, token by token: the darker a token, the likelier it was. Pointing at one, or
// moving to it with the arrow keys, shows the alternatives.

import { element, arrowKeys, bars, percent, visible } from "./dom.js";

const tip = element("div", { class: "token-tip", role: "tooltip", id: "token-tip", hidden: true });
document.body.append(tip);
document.addEventListener("scroll", hide, true);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});

function hide() {
  tip.hidden = true;
}

/** Show the alternatives of a token beside it. */
function showTip(span, token) {
  const { text, logprob, top } = token;
  tip.replaceChildren(
    element(
      "p",
      {},
      "Probability of ",
      element("b", {}, visible(text)),
      `: ${percent(Math.exp(logprob))}`,
    ),
    bars(
      top.map(([name, value]) => ({ name, value: Math.exp(value) })),
      "Alternatives",
    ),
  );
  tip.hidden = false;
  const box = span.getBoundingClientRect(),
    edge = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, Math.min(box.left, edge))}px`;
  tip.style.top = `${above < 8 ? box.bottom + 6 : above}px`;
}

export class TokenText {
  constructor(prompt = "") {
    this.spans = [];
    this.tokens = new Map();
    this.element = element(
      "p",
      {
        class: "token-text",
        onpointerover: (event) => this.point(event),
        onpointerleave: hide,
        onfocusin: (event) => this.point(event),
        onfocusout: hide,
        onkeydown: (event) => arrowKeys(event, this.spans, (place) => this.focus(place)),
      },
      prompt ? element("span", { class: "given" }, prompt) : null,
    );
  }

  /** Add a text without probabilities. */
  addText(text) {
    this.element.append(text);
  }

  /** Add a token: {text, logprob, top: [[text, logprob], …]}; spaces before it have no colour. */
  add(token) {
    const word = token.text.trimStart() || token.text;
    const span = element(
      "span",
      {
        class: "token",
        tabindex: this.spans.length ? -1 : 0,
        "aria-describedby": "token-tip",
        style: `--p:${Math.exp(token.logprob).toFixed(4)}`,
      },
      token.text.slice(0, token.text.length - word.length),
      element("span", {}, word),
    );
    this.tokens.set(span, token);
    this.spans.push(span);
    this.element.append(span);
  }

  point(event) {
    const span = event.target.closest(".token");
    if (span) showTip(span, this.tokens.get(span));
    else hide();
  }

  focus(place) {
    this.spans.forEach((span, i) => span.setAttribute("tabindex", i === place ? 0 : -1));
    this.spans[place].focus();
  }
}

/**
 * The tokens of a streamed piece of text.
 *
 * Their texts need not add up to it, because a character may have several tokens; then
 * the piece is shown as one token, with the probabilities of the last.
 */
export function tokensOf({ text, logprobs: { tokens, token_logprobs, top_logprobs } }) {
  const made = tokens.map((token, i) => ({
    text: token,
    logprob: token_logprobs[i],
    top: Object.entries(top_logprobs[i]).sort((a, b) => b[1] - a[1]),
  }));
  if (tokens.join("") === text) return made;
  return text && made.length ? [{ ...made.at(-1), text }] : [];
}
