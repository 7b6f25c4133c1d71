// Elements are made of text nodes only: nothing a person or a model wrote is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element; properties starting with "on" are listeners, false leaves one out. */
export function element(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** Make an SVG element. */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

function build(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Make nodes of a sentence in which code is between backticks. */
export function withCode(sentence) {
  return sentence.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

/** Format a probability: 46%, 4.9%, 0.03%, <0.01%. */
export function percent(value) {
  const number = 100 * value;
  if (number === 0 || number >= 9.95) return `${number.toFixed(0)}%`;
  if (number >= 0.095) return `${number.toFixed(1)}%`;
  return number >= 0.0095 ? `${number.toFixed(2)}%` : "<0.01%";
}

/** Make a table of names with probabilities as bars; rows are {name, value}. */
export function bars(rows, label) {
  const made = rows.map(({ name, value }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, visible(name)),
      element("td", { class: "track" }, element("b", { style: `width:${100 * value}%` })),
      element("td", {}, percent(value)),
    ),
  );
  return element(
    "div",
    { class: "bars" },
    element("table", { "aria-label": label }, element("tbody", {}, made)),
  );
}

/** Show spaces and line breaks at the ends of a token. */
export function visible(token) {
  return token
    .replace(/\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/^ +| +$/g, (s) => "␣".repeat(s.length));
}

/** Move the focus and the place in the Tab order among items with the arrow keys. */
export function arrowKeys(event, items, choose) {
  const at = items.indexOf(event.target.closest("[tabindex]"));
  const steps = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1 };
  const ends = { Home: 0, End: items.length - 1 };
  const next = steps[event.key] ?? ends[event.key];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  choose((next + items.length) % items.length);
}
