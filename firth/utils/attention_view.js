// Attention figures: an overview of all heads; the lines and the matrix of the selected one.
// The data of a figure is the JSON in the script element after it (attention_view.py).

const THUMBNAIL = 96;  // pixels of a head in the overview, at most
const UNCUT_LAYERS = 6;  // more of them are scrolled
const MARKS = ["▲", "●", "■", "◆", "✚", "★", "▼", "○", "□", "◇"];  // of patterns

/** A grid of small pictures, layers down and heads across. */
class Overview {
  constructor(part, marks, select) {
    this.part = part;
    this.select = select;
    this.columns = [...new Set(part.layers.flatMap((layer) => layer.heads.map((h) => h.number)))];
    this.columns.sort((a, b) => a - b);
    this.cells = part.layers.map((layer, l) => layer.heads.map((_, h) => this.cell(l, h, marks)));
    const rows = part.layers.map((layer, l) => element("div", { role: "row" },
      element("span", { role: "rowheader", style: `grid-row:${l + 2}` }, `${layer.number}`),
      ...this.cells[l]));
    const heads = this.columns.map((number, i) =>
      element("span", { role: "columnheader", style: `grid-column:${i + 2}` }, `${number}`));
    const corner = element("span",
      { role: "columnheader", class: "corner", "aria-label": "layer" });
    this.element = element("div", {
      class: part.layers.length > UNCUT_LAYERS ? "av-overview long" : "av-overview", role: "grid",
      "aria-label": "All heads: layers down, heads across",
      style: `--columns:${this.columns.length}`, onkeydown: (event) => this.move(event),
    }, element("div", { role: "row" }, corner, ...heads), ...rows);
    this.watch();
  }

  cell(l, h, marks) {
    const layer = this.part.layers[l], head = layer.heads[h];
    const label = head.pattern ? `${head.pattern[0]} ${head.pattern[1].toFixed(2)}` : "";
    const name = `Layer ${layer.number}, head ${head.number}${label ? `: ${label}` : ""}`;
    const shape = clamp(this.part.keys.length / this.part.queries.length, 0.5, 2);
    return element("button", {
      type: "button", role: "gridcell", tabindex: -1, title: name, "aria-label": name,
      "data-pattern": head.pattern?.[0] ?? "", onclick: () => this.select(l, h),
      style: `grid-row:${l + 2};grid-column:${this.columns.indexOf(head.number) + 2}`,
    }, element("canvas", { style: `aspect-ratio:${shape}`, "data-place": `${l} ${h}` }),
    element("span", {}, ...(head.pattern
      ? [element("i", {}, marks.get(head.pattern[0])), element("b", {}, ` ${head.pattern[0]}`),
        ` ${head.pattern[1].toFixed(2)}`]
      : [])));
  }

  /** Draw a head when it first comes into view. */
  watch() {
    const seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        this.draw(target);
      }
    }, { rootMargin: "200px" });
    for (const canvas of this.element.querySelectorAll("canvas")) seen.observe(canvas);
  }

  draw(canvas) {
    const [l, h] = canvas.dataset.place.split(" "), layer = this.part.layers[l];
    const weights = weightsOf(this.part, layer, layer.heads[h]);
    const width = Math.min(weights.keys, THUMBNAIL), height = Math.min(weights.queries, THUMBNAIL);
    canvas.width = width;
    canvas.height = height;
    paint(canvas.getContext("2d"), weights, colourScale(canvas), {
      x: 0, y: 0, width, height, left: 0, top: 0,
      cellWidth: width / weights.keys, cellHeight: height / weights.queries,
    });
    canvas.dataset.drawn = "";
  }

  redraw() {
    for (const canvas of this.element.querySelectorAll("canvas[data-drawn]")) this.draw(canvas);
  }

  mark(l, h) {
    this.current?.setAttribute("aria-selected", "false");
    if (this.current) this.current.tabIndex = -1;
    this.place = [l, h];
    this.current = this.cells[l][h];
    this.current.setAttribute("aria-selected", "true");
    this.current.tabIndex = 0;
  }

  /** Select the neighbour in the direction of an arrow key; Home, End: in the same layer. */
  move(event) {
    const [l, h] = this.place, heads = this.part.layers[l].heads;
    let next;
    if (event.key === "Home") next = [l, 0];
    else if (event.key === "End") next = [l, heads.length - 1];
    else if (ARROWS[event.key]) {
      const [down, right] = ARROWS[event.key], row = clamp(l + down, 0, this.cells.length - 1);
      next = [row, clamp(sameHead(this.part, l, h, row) + right, 0, this.cells[row].length - 1)];
    } else return;
    event.preventDefault();
    this.select(...next);
    this.current.focus();
  }

  /** Emphasize the heads of one pattern; "" for none. */
  emphasize(pattern) {
    for (const cell of this.cells.flat()) {
      cell.classList.toggle("faint", pattern !== "" && cell.dataset.pattern !== pattern);
    }
  }
}

/** Find the head with the same number in another layer, or the nearest place. */
function sameHead(part, l, h, other) {
  const number = part.layers[l].heads[h].number, heads = part.layers[other].heads;
  const found = heads.findIndex((head) => head.number === number);
  return found >= 0 ? found : Math.min(h, heads.length - 1);
}

/** A figure: selects a part, a layer and a head, and shows them. */
class AttentionFigure {
  constructor(root, parts) {
    this.parts = parts;
    const patterns = parts.flatMap((part) => part.layers.flatMap((layer) =>
      layer.heads.map((head) => head.pattern?.[0])));
    this.marks = new Map([...new Set(patterns)].filter(Boolean).map((name, i) =>
      [name, MARKS[i % MARKS.length]]));
    this.view = "lines";
    this.status = element("p", { class: "av-status", role: "status", "aria-live": "polite" });
    this.content = element("div");
    root.replaceChildren(...this.partButtons(), this.content);
    this.showPart(0);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => { this.overview.redraw(); this.update(); });
  }

  partButtons() {
    if (this.parts.length < 2) return [];
    this.partSwitch = choice("Attention of", this.parts.map((part) => part.name),
      (place) => this.showPart(place));
    return [this.partSwitch];
  }

  showPart(place) {
    this.part = this.parts[place];
    if (this.partSwitch) press(this.partSwitch, place);
    this.overview = new Overview(this.part, this.marks, (l, h) => this.select(l, h));
    const say = (text) => { this.status.textContent = text || this.selected; };
    this.views = { lines: new Lines(this.part, say), matrix: new Matrix(this.part, say) };
    this.layerSelect = this.selectBox("Layer", this.part.layers, (l) =>
      this.select(l, sameHead(this.part, this.layer, this.head, l)));
    this.headSelect = this.selectBox("Head", [], (h) => this.select(this.layer, h));
    this.viewSwitch = choice("View", ["Lines", "Matrix"], (chosen) => {
      this.view = ["lines", "matrix"][chosen];
      this.update();
    });
    this.content.replaceChildren(this.legend(), this.overview.element, element("div",
      { class: "av-tools av-selected" }, this.layerSelect.parentNode, this.headSelect.parentNode,
      this.viewSwitch), this.status, this.views.lines.element,
    this.views.matrix.element, this.note());
    this.select(0, 0);
  }

  selectBox(label, items, use) {
    const box = element("select", { onchange: () => use(box.selectedIndex) });
    fill(box, items);
    element("label", {}, `${label} `, box);
    return box;
  }

  /** The patterns that heads of this part have; pointing at one, or a click, emphasizes them. */
  legend() {
    const heads = this.part.layers.flatMap((layer) => layer.heads);
    let chosen = "";
    const entries = [...this.marks].map(([name, mark]) => {
      const count = heads.filter((head) => head.pattern?.[0] === name).length;
      return count && element("button", {
        type: "button", "aria-pressed": "false", "data-pattern": name,
        title: `Emphasize the heads with the pattern “${name}”`,
        onpointerenter: () => this.overview.emphasize(name),
        onpointerleave: () => this.overview.emphasize(chosen),
        onclick: () => choose(chosen === name ? "" : name),
      }, element("i", {}, mark), ` ${name} (${count})`);
    }).filter(Boolean);
    const choose = (name) => {
      chosen = name;
      this.overview.emphasize(chosen);
      for (const one of entries) one.setAttribute("aria-pressed", `${one.dataset.pattern === name}`);
    };
    return element("div", { class: "av-legend" },
      element("span", {}, "Layers down, heads across. "), ...entries);
  }

  note() {
    const kept = Math.max(...this.part.layers.map((layer) => layer.top_k));
    const text = `The ${kept} largest weights of each token are stored; the others are smaller.`;
    return element("p", { class: "av-note" }, kept ? text : "");
  }

  select(l, h) {
    const { heads } = this.part.layers[l];
    if (l !== this.layer || !this.headSelect.length) fill(this.headSelect, heads);
    [this.layer, this.head] = [l, h];
    this.overview.mark(l, h);
    this.layerSelect.selectedIndex = l;
    this.headSelect.selectedIndex = h;
    this.update();
  }

  update() {
    const layer = this.part.layers[this.layer], head = layer.heads[this.head];
    press(this.viewSwitch, this.view === "lines" ? 0 : 1);
    const label = head.pattern ? `${head.pattern[0]} ${head.pattern[1].toFixed(2)}` : "";
    const part = this.parts.length > 1 ? ` (${this.part.name})` : "";
    this.selected = `Layer ${layer.number}, head ${head.number}${part}${label ? `: ${label}` : ""}`;
    this.status.textContent = this.selected;
    for (const [name, view] of Object.entries(this.views)) {
      view.element.hidden = name !== this.view;
    }
    if (this.view === "matrix") this.views.matrix.show(weightsOf(this.part, layer, head));
    else this.views.lines.show(layer, this.head);
  }
}

function fill(box, items) {
  box.replaceChildren(...items.map((item) => element("option", {}, `${item.number}`)));
}

/** A row of buttons of which one is pressed. */
function choice(label, texts, use) {
  const buttons = texts.map((text, place) =>
    element("button", { type: "button", onclick: () => use(place) }, text));
  return element("span", { class: "av-buttons", role: "group", "aria-label": label }, ...buttons);
}

function press(group, place) {
  [...group.children].forEach((button, i) => button.setAttribute("aria-pressed", `${i === place}`));
}

// A figure is built when it first comes into view, or before the page is printed: a page may have
// many, some of them in tabs.
const unseen = new Set(document.querySelectorAll(".attention-view"));

function build(root) {
  if (unseen.delete(root)) {
    new AttentionFigure(root, JSON.parse(root.nextElementSibling.textContent));
  }
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) build(target);
}, { rootMargin: "400px" });
unseen.forEach((root) => observer.observe(root));
addEventListener("beforeprint", () => [...unseen].forEach(build));
