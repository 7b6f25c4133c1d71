// A picture of texts as points; the label of a point is beside it, and its text on demand.

import { element, svg, percent } from "./dom.js";

const MARGIN = 34;
const LETTER = 6.7; // width of a letter of a label, about

/**
 * Draw points {text, query} at `places` on a picture of `width` pixels.
 *
 * `select(i)` is called for the point under the pointer or in focus.
 */
export function scatter(points, { places, fractions }, width, select) {
  const size = { width, height: Math.round(Math.max(260, Math.min(420, 0.7 * width))) };
  const x = scale(
    places.map(([across]) => across),
    size.width,
  );
  const y = scale(
    places.map(([, up]) => -up),
    size.height,
  );
  const spots = places.map(([across, up]) => ({ x: x(across), y: y(-up) }));
  const texts = points.map((point) => cut(point.text, width / 20));
  const labels = placeLabels(spots, texts, size);
  const marks = points.map((point, i) =>
    svg(
      "g",
      {
        class: `spot${point.query ? " query" : ""}${labels[i].hidden ? " crowded" : ""}`,
        tabindex: 0,
        role: "img",
        "aria-label": point.text,
        onpointerenter: () => select(i),
        onfocus: () => select(i),
      },
      svg("title", {}, point.text),
      svg("circle", { cx: spots[i].x, cy: spots[i].y, r: point.query ? 7 : 5 }),
      svg(
        "text",
        { x: labels[i].x, y: labels[i].y + 4, "text-anchor": labels[i].anchor },
        texts[i],
      ),
    ),
  );
  const axes = fractions.map(
    (fraction, axis) => `component ${axis + 1}: ${percent(fraction)} of the variance`,
  );
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${size.width} ${size.height}`,
      role: "group",
      "aria-label": "Texts in two dimensions",
    },
    svg("rect", {
      class: "frame",
      x: 1,
      y: 1,
      width: size.width - 2,
      height: size.height - 2,
      rx: 10,
    }),
    marks,
  );
  return {
    element: element(
      "figure",
      { class: "picture" },
      picture,
      element(
        "figcaption",
        {},
        `The first two principal components of the texts (${axes.join(", ")}).`,
      ),
    ),
    highlight: (chosen) =>
      marks.forEach((mark, i) => mark.classList.toggle("chosen", i === chosen)),
  };
}

/** Put each label beside its point, where it covers no other; a label without room is hidden. */
function placeLabels(spots, texts, size) {
  const taken = spots.map(({ x, y }) => ({ x: x - 6, y: y - 6, width: 12, height: 12 }));
  const order = spots.map((_, i) => i).reverse(); // the query is last, and its label comes first
  const labels = [];
  for (const i of order) {
    const width = LETTER * texts[i].length,
      { x, y } = spots[i];
    const fits = CANDIDATES.map((make) => make(x, y, width)).find(
      ({ box }) =>
        box.x > 4 &&
        box.x + box.width < size.width - 4 &&
        box.y > 4 &&
        box.y + box.height < size.height - 4 &&
        !taken.some((other, j) => j !== i && overlaps(box, other)),
    );
    if (fits) taken.push(fits.box);
    labels[i] = fits ?? {
      x: Math.min(x + 10, size.width - width - 8),
      y,
      anchor: "start",
      hidden: true,
    };
  }
  return labels;
}

const CANDIDATES = [
  // right of the point, left of it, above, below
  (x, y, width) => ({
    x: x + 10,
    y,
    anchor: "start",
    box: { x: x + 8, y: y - 8, width, height: 16 },
  }),
  (x, y, width) => ({
    x: x - 10,
    y,
    anchor: "end",
    box: { x: x - 8 - width, y: y - 8, width, height: 16 },
  }),
  (x, y, width) => ({
    x,
    y: y - 15,
    anchor: "middle",
    box: { x: x - width / 2, y: y - 23, width, height: 16 },
  }),
  (x, y, width) => ({
    x,
    y: y + 15,
    anchor: "middle",
    box: { x: x - width / 2, y: y + 7, width, height: 16 },
  }),
];

const overlaps = (a, b) =>
  a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

function scale(values, size) {
  const low = Math.min(...values),
    span = Math.max(...values) - low || 1;
  return (value) => Math.round(MARGIN + ((size - 2 * MARGIN) * (value - low)) / span);
}

function cut(text, size) {
  const letters = Array.from(text);
  return letters.length > size
    ? `${letters
        .slice(0, size - 1)
        .join("")
        .trimEnd()}…`
    : text;
}
