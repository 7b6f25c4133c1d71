// The weights of one head as coloured cells, queries down and keys across.

const LABEL = 16;        // height of a token beside the matrix; smaller cells have fewer labels
const LARGEST_CELL = 56;
const WITH_NUMBER = 34;  // cells of this size hold their percentage

class Matrix {
  constructor(part, say) {
    this.part = part;
    this.say = say;
    this.queryNames = names(part.queries);
    this.keyNames = names(part.keys);
    this.cell = 0;  // pixels; 0: as large as fits
    this.canvas = element("canvas");
    this.space = element("div", { class: "av-space" }, this.canvas);
    this.box = element("div", {
      class: "av-box av-matrix", tabindex: 0, role: "application",
      "aria-label": "Attention matrix: queries down, keys across. Arrow keys move between cells.",
      onscroll: () => this.soon(), ondblclick: () => this.zoom(3),
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
      onpointerleave: (event) => event.pointerType !== "touch" && this.hover(null),
    }, this.space);
    this.tip = element("div", { class: "av-tip", hidden: "" });
    const zoom = (text, label, factor) => element("button", {
      type: "button", "aria-label": label, title: label, onclick: () => this.zoom(factor) }, text);
    this.element = element("div", { class: "av-stage" },
      element("div", { class: "av-tools" }, scaleLegend(), element("span", { class: "av-buttons" },
        zoom("−", "Zoom out", 1 / 1.6), zoom("+", "Zoom in", 1.6), zoom("Fit", "Fit", 0))),
      this.box, this.tip);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(weights) {
    this.weights = weights;
    this.draw();
  }

  soon() {
    this.pending ??= requestAnimationFrame(() => { this.pending = null; this.draw(); });
  }

  /** Find the sizes of labels and cells; the whole matrix fits unless it is zoomed. */
  layout() {
    const width = this.box.clientWidth, most = Math.max(420, 0.8 * window.innerHeight);
    this.longest ??= [this.part.queries, this.part.keys].map((tokens) => longest(this.box, tokens));
    this.left = Math.min(this.longest[0], 0.3 * width, 150) + 10;
    this.top = Math.min(this.longest[1], 120) + 10;
    const across = (width - this.left) / this.part.keys.length;
    const down = (most - this.top) / this.part.queries.length;
    const fit = Math.min(across, Math.max(down, 20));
    this.fit = Math.min(LARGEST_CELL, fit < LABEL ? Math.min(across, down) : fit);
    this.size = Math.max(this.cell, this.fit);
    this.space.style.width = `${this.left + this.size * this.part.keys.length}px`;
    this.space.style.height = `${this.top + this.size * this.part.queries.length}px`;
    this.box.style.maxHeight = `${most}px`;
  }

  draw() {
    if (!this.weights || !this.box.clientWidth) return;
    this.layout();
    const { keys, queries } = this.weights, { size } = this;
    const width = Math.min(this.box.clientWidth, this.left + size * keys);
    const height = Math.min(this.box.clientHeight, this.top + size * queries);
    const context = sized(this.canvas, width, height);
    this.drawCells(context, Math.floor(width - this.left), Math.floor(height - this.top));
    this.drawLabels(context, width, height);
    this.drawTip();
  }

  drawCells(context, width, height) {
    const ratio = window.devicePixelRatio || 1, scale = colourScale(this.box), { size } = this;
    const [left, top] = [this.box.scrollLeft, this.box.scrollTop];
    paint(context, this.weights, scale, {
      x: Math.round(this.left * ratio), y: Math.round(this.top * ratio),
      width: Math.max(1, Math.floor(width * ratio)),
      height: Math.max(1, Math.floor(height * ratio)),
      left: left * ratio, top: top * ratio, cellWidth: size * ratio, cellHeight: size * ratio,
    });
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, width, height);
    context.clip();
    context.translate(this.left - left, this.top - top);
    if (size >= 12) this.drawGrid(context, left, top, width, height);
    if (size >= WITH_NUMBER) this.drawNumbers(context, scale, [top, top + height]);
    if (this.at) this.drawFrame(context);
    context.restore();
  }

  drawGrid(context, left, top, width, height) {
    context.fillStyle = getComputedStyle(this.box).getPropertyValue("--card");
    const { size } = this;
    for (let i = Math.floor(left / size); i * size <= left + width; i++) {
      context.fillRect(i * size - 0.5, top, 1, height);
    }
    for (let i = Math.floor(top / size); i * size <= top + height; i++) {
      context.fillRect(left, i * size - 0.5, width, 1);
    }
  }

  drawNumbers(context, scale, [from, to]) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    const last = Math.min(this.weights.queries, Math.ceil(to / this.size));
    for (let query = Math.floor(from / this.size); query < last; query++) {
      this.weights.forRow(query, (key, weight) => {
        if (weight < 0.005) return;
        const [r, g, b] = scale[step256(weight)];
        context.fillStyle = 0.3 * r + 0.59 * g + 0.11 * b > 125 ? "#14171b" : "#ffffff";
        const text = `${Math.round(100 * weight)}`;
        context.fillText(text, (key + 0.5) * this.size, (query + 0.5) * this.size);
      });
    }
  }

  drawFrame(context) {
    const [query, key] = this.at, { size } = this, side = Math.max(size, 3);
    context.strokeStyle = getComputedStyle(this.box).getPropertyValue("--c1");
    context.lineWidth = 2;
    context.strokeRect(key * size, query * size, side, side);
  }

  drawLabels(context, width, height) {
    const style = getComputedStyle(this.box), { size } = this;
    context.textBaseline = "middle";
    const along = (tokens, scroll, length, current, write) => {
      const step = Math.ceil(LABEL / size), first = Math.max(0, Math.ceil(scroll / size - 0.5));
      const last = Math.min(tokens.length - 1, Math.floor((scroll + length) / size - 0.5));
      for (let i = Math.ceil(first / step) * step; i <= last; i += step) {
        if (current >= 0 && Math.abs(i - current) * size < LABEL) continue;
        write(tokens[i], (i + 0.5) * size - scroll, style.color);
      }
      if (current >= first && current <= last) {
        write(tokens[current], (current + 0.5) * size - scroll, style.getPropertyValue("--c1"));
      }
    };
    const [atQuery, atKey] = this.at ?? [-1, -1];
    const writeQuery = (token, at, colour) => {
      context.fillStyle = colour;
      context.textAlign = "right";
      context.fillText(shortened(context, token, this.left - 10), this.left - 7, this.top + at);
    };
    along(this.part.queries, this.box.scrollTop, height - this.top, atQuery, writeQuery);
    const flat = this.longest[1] < size - 4;
    along(this.part.keys, this.box.scrollLeft, width - this.left, atKey, (token, at, colour) => {
      context.save();
      context.fillStyle = colour;
      context.translate(this.left + at, this.top - 7);
      context.rotate(flat ? 0 : -Math.PI / 2);
      context.textAlign = flat ? "center" : "left";
      context.fillText(shortened(context, token, this.top - 10), 0, flat ? -8 : 0);
      context.restore();
    });
  }

  /** Enlarge the cells around the current one, or around the middle; 0: let all of them fit. */
  zoom(factor) {
    const { box, size } = this;
    const across = this.at ? (this.at[1] + 0.5) * size - box.scrollLeft
      : (box.clientWidth - this.left) / 2;
    const down = this.at ? (this.at[0] + 0.5) * size - box.scrollTop
      : (box.clientHeight - this.top) / 2;
    const [key, query] = [(across + box.scrollLeft) / size, (down + box.scrollTop) / size];
    this.cell = clamp(size * factor, 0, LARGEST_CELL);
    this.draw();
    box.scrollLeft = key * this.size - across;
    box.scrollTop = query * this.size - down;
    this.draw();
  }

  point(event) {
    const frame = this.canvas.getBoundingClientRect();
    const x = event.clientX - frame.left - this.left, y = event.clientY - frame.top - this.top;
    const key = Math.floor((x + this.box.scrollLeft) / this.size);
    const query = Math.floor((y + this.box.scrollTop) / this.size);
    const inside = x >= 0 && y >= 0 && key < this.weights.keys && query < this.weights.queries;
    this.hover(inside ? [query, key] : null);
  }

  key(event) {
    if (event.key === "+" || event.key === "-") return this.zoom(event.key === "+" ? 1.6 : 1 / 1.6);
    if (!ARROWS[event.key]) return undefined;
    event.preventDefault();
    const [down, right] = this.at ? ARROWS[event.key] : [0, 0], [query, key] = this.at ?? [0, 0];
    const next = [clamp(query + down, 0, this.weights.queries - 1),
      clamp(key + right, 0, this.weights.keys - 1)];
    this.reveal(next);
    return this.hover(next);
  }

  reveal([query, key]) {
    const { box, size } = this;
    const [across, down] = [box.clientWidth - this.left, box.clientHeight - this.top];
    box.scrollLeft = clamp(box.scrollLeft, (key + 1) * size - across, key * size);
    box.scrollTop = clamp(box.scrollTop, (query + 1) * size - down, query * size);
  }

  hover(at) {
    if (`${at}` === `${this.at}`) return;
    this.at = at;
    this.say(at ? this.sentence() : "");
    this.draw();
  }

  sentence() {
    const [query, key] = this.at, weight = this.weights.describe(query, key);
    return `${this.queryNames[query]} → ${this.keyNames[key]}: ${weight}`;
  }

  /** Show the sentence beside the current cell, on the side with more room. */
  drawTip() {
    this.tip.hidden = !this.at;
    if (!this.at) return;
    this.tip.textContent = this.sentence();
    const { box, size } = this, [query, key] = this.at;
    const x = this.left + key * size - box.scrollLeft, y = this.top + query * size - box.scrollTop;
    this.tip.hidden = y + size < this.top || y > box.clientHeight || x + size < this.left
      || x > box.clientWidth;
    const onTheLeft = x > box.clientWidth / 2;
    this.tip.style.left = onTheLeft ? "" : `${x + size + 6}px`;
    this.tip.style.right = onTheLeft ? `${this.element.clientWidth - x + 6}px` : "";
    this.tip.style.top = `${box.offsetTop + y + size + 6}px`;
  }
}

/** Measure the longest tokens; by their letters, as measuring all of them takes long. */
function longest(node, tokens) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = fontOf(node);
  const chosen = [...tokens].sort((a, b) => b.length - a.length).slice(0, 20);
  return Math.max(...chosen.map((token) => context.measureText(token).width));
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}

function scaleLegend() {
  return element("span", { class: "av-scale" }, "0%", element("i"), "35%", element("i"), "100%");
}
