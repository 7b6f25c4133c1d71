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
  const known = top.some(([other]) => other === text);
  const shown = known || logprob === null ? top : [...top, [text, logprob]];
  tip.replaceChildren(
    element(
      "p",
      {},
      element("b", {}, visible(text)),
      logprob === null ? "" : ` had probability ${percent(Math.exp(logprob))}`,
    ),
    shown.length ? bars(shown.map(([name, value]) => ({ name, value: Math.exp(value) }))) : "",
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

  /** Add a token: {text, logprob, top: [[text, logprob], …]}. */
  add(token) {
    const span = element(
      "span",
      {
        class: "token",
        tabindex: this.spans.length ? -1 : 0,
        "aria-describedby": "token-tip",
        style: token.logprob === null ? "" : `--p:${Math.exp(token.logprob).toFixed(4)}`,
      },
      token.text,
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

/** The tokens of a streamed piece of text; without log-probabilities the piece is one token. */
export function tokensOf({ text, logprobs }) {
  const tokens = logprobs?.tokens ?? [];
  if (!tokens.length || tokens.join("") !== text) {
    const first = tokens.length ? logprobs.token_logprobs[0] : null;
    return text ? [{ text, logprob: first, top: pairs(logprobs?.top_logprobs?.[0]) }] : [];
  }
  return tokens.map((token, i) => ({
    text: token,
    logprob: logprobs.token_logprobs[i],
    top: pairs(logprobs.top_logprobs?.[i]),
  }));
}

const pairs = (top) => Object.entries(top ?? {}).sort((a, b) => b[1] - a[1]);
