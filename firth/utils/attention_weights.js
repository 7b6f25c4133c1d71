// What all views of attention share: elements, the weights of a head, and their colours.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const fontOf = (node) => `14px ${getComputedStyle(node).fontFamily}`;
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** Make an element; properties starting with "on" are listeners. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function percent(weight) {
  const value = 100 * weight;
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)}%`;
}

/** Name tokens for sentences: one that occurs several times is followed by its position. */
function names(tokens) {
  const counts = new Map();
  for (const token of tokens) counts.set(token, (counts.get(token) ?? 0) + 1);
  return tokens.map((token, i) => (counts.get(token) > 1 ? `${token} (${i + 1})` : token));
}

/** The weights of a head, decoded when first needed: all of a row, or its largest ones. */
function weightsOf(part, layer, head) {
  head.weights ??= new Weights(head.data, part.queries.length, part.keys.length, layer);
  return head.weights;
}

class Weights {
  constructor(base64, queries, keys, layer) {
    const text = atob(base64), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    let offset = 0;
    const take = (Kind, count) => {
      const array = new Kind(bytes.buffer, offset, count);
      offset += array.byteLength;
      return array;
    };
    this.queries = queries;
    this.keys = keys;
    this.width = layer.top_k || keys;
    const Index = layer.index_bytes === 4 ? Uint32Array : Uint16Array;
    this.indices = layer.top_k ? take(Index, queries * this.width) : null;
    this.scales = take(Uint16Array, queries);  // the largest weight of each row
    this.bytes = take(Uint8Array, queries * this.width);
  }

  /** Call use(key, weight) for each stored weight of a row that is not 0. */
  forRow(query, use) {
    const step = this.scales[query] / (65535 * 255), start = query * this.width;
    for (let i = start; i < start + this.width; i++) {
      if (this.bytes[i]) use(this.indices ? this.indices[i] : i - start, this.bytes[i] * step);
    }
  }

  row(query) {
    const found = [];
    this.forRow(query, (key, weight) => found.push([key, weight]));
    return found.sort((a, b) => b[1] - a[1]);
  }

  weight(query, key) {
    return this.row(query).find(([other]) => other === key)?.[1] ?? 0;
  }

  /** Describe one weight; one that is not stored is smaller than those of its row that are. */
  describe(query, key) {
    const found = this.row(query), own = found.find(([other]) => other === key);
    if (own) return percent(own[1]);
    return this.indices && found.length === this.width ? `< ${percent(found.at(-1)[1])}` : "0%";
  }
}

/** The colours of weights 0 to 1 in 256 steps; small weights differ more. */
function colourScale(node) {
  const style = getComputedStyle(node);
  const stops = ["--weight-0", "--weight-1", "--weight-2"].map((name) => {
    const hex = parseInt(style.getPropertyValue(name).trim().slice(1), 16);
    return [hex >> 16, (hex >> 8) & 255, hex & 255];
  });
  return Array.from({ length: 256 }, (_, i) => {
    const at = 2 * (i / 255) ** (2 / 3), from = Math.min(1, Math.floor(at)), share = at - from;
    return stops[from].map((value, c) => Math.round(value + share * (stops[from + 1][c] - value)));
  });
}

const step256 = (weight) => clamp(Math.round(255 * weight), 0, 255);

/** Paint weights on a rectangle of pixels; where several fall on a pixel, the largest is seen. */
function paint(context, weights, scale, { x, y, width, height, left, top, cellWidth, cellHeight }) {
  const largest = new Float32Array(width * height);
  const last = Math.min(weights.queries, Math.ceil((top + height) / cellHeight));
  for (let query = Math.max(0, Math.floor(top / cellHeight)); query < last; query++) {
    const y0 = Math.max(0, Math.floor(query * cellHeight - top));
    const y1 = Math.min(height, Math.max(y0 + 1, Math.floor((query + 1) * cellHeight - top)));
    weights.forRow(query, (key, weight) => {
      if ((key + 1) * cellWidth <= left) return;
      const x0 = Math.max(0, Math.floor(key * cellWidth - left));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.floor((key + 1) * cellWidth - left)));
      for (let row = y0; row < y1; row++) {
        for (let i = row * width + x0; i < row * width + x1; i++) {
          if (weight > largest[i]) largest[i] = weight;
        }
      }
    });
  }
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);  // alpha, blue, green, red
  const packed = scale.map(([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  for (let i = 0; i < pixels.length; i++) pixels[i] = packed[step256(largest[i])];
  context.putImageData(image, x, y);
}

/** Set the size of a canvas in CSS pixels; return its context, which is scaled accordingly. */
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = fontOf(canvas);
  return context;
}

