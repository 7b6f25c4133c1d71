// The weights of one head, or of all heads of a layer, as lines from queries to keys.

const ROW = 28;  // height of a token
const HEAD_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
  "#8a6fdf", "#8b8b8b", "#b8a600", "#00a3a3", "#a0522d", "#e377c2"];
const UNCUT = 40;  // texts with more tokens are scrolled
const SHOWN_KEYS = 6;  // in sentences

class Lines {
  constructor(part, say) {
    this.part = part;
    this.say = say;
    this.queryNames = names(part.queries);
    this.keyNames = names(part.keys);
    this.pinned = this.hovered = -1;
    this.hidden = new Set();  // numbers of heads
    this.build();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  build() {
    this.queries = element("div", {
      class: "av-tokens", role: "listbox", "aria-label": "Queries",
      onpointerover: (event) => this.hover(placeOf(event)), onpointerleave: () => this.hover(-1),
      onfocusin: (event) => this.hover(placeOf(event)), onfocusout: () => this.hover(-1),
      onclick: (event) => this.pin(placeOf(event)), onkeydown: (event) => this.key(event),
    }, ...this.part.queries.map((token, i) => element("div",
      { role: "option", tabindex: i ? -1 : 0, "aria-selected": "false", title: token }, token)));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.keys = element("div", { class: "av-tokens av-keys", "aria-label": "Keys" },
      ...this.part.keys.map((token) => element("div", { title: token },
        element("span", {}, token), element("b"))));
    const long = Math.max(this.part.queries.length, this.part.keys.length) > UNCUT;
    this.box = element("div", {
      class: `av-box av-lines ${long ? "long" : ""}`, onscroll: () => this.soon(),
    }, this.queries, element("div", { class: "av-middle" }, this.canvas), this.keys);
    this.all = element("input", { type: "checkbox", onchange: () => this.update() });
    this.heads = element("span", { class: "av-heads" });
    this.jumps = element("div", { class: "av-legend" });
    this.element = element("div", { class: "av-stage" }, element("div", { class: "av-tools" },
      element("label", {}, this.all, " all heads of the layer (weights from 10%)"), this.heads), this.box, this.jumps);
  }

  show(layer, place) {
    this.layer = layer;
    this.place = place;
    this.update();
  }

  update() {
    const { layer } = this, all = this.all.checked;
    const colour = getComputedStyle(this.box).getPropertyValue("--c0").trim();
    this.shown = layer.heads
      .map((head, i) => ({ head, colour: all ? HEAD_COLOURS[i % HEAD_COLOURS.length] : colour }))
      .filter(({ head }, i) => (all ? !this.hidden.has(head.number) : i === this.place))
      .map(({ head, colour }) => ({ colour, weights: weightsOf(this.part, layer, head) }));
    this.heads.replaceChildren(...(all ? layer.heads.map((head, i) => this.toggle(head, i)) : []));
    this.describe();
    this.offerJumps();
    this.draw();
  }

  toggle(head, place) {
    const on = !this.hidden.has(head.number);
    return element("button", {
      type: "button", "aria-pressed": `${on}`, "aria-label": `Head ${head.number}`,
      style: `--head:${HEAD_COLOURS[place % HEAD_COLOURS.length]}`,
      onclick: () => {
        if (on) this.hidden.add(head.number);
        else this.hidden.delete(head.number);
        this.update();
        this.heads.children[place].focus();
      },
    }, `${head.number}`);
  }

  soon() {
    this.pending ??= requestAnimationFrame(() => { this.pending = null; this.draw(); });
  }

  get active() {
    return this.hovered >= 0 ? this.hovered : this.pinned;
  }

  hover(query) {
    if (query === this.hovered) return;
    this.hovered = query;
    this.describe();
    this.draw();
  }

  /** Keep the lines of a query when the pointer leaves it; a second click releases them. */
  pin(query) {
    if (query < 0) return;
    this.queries.children[this.pinned]?.setAttribute("aria-selected", "false");
    this.hovered = this.pinned = this.pinned === query ? -1 : query;
    this.queries.children[this.pinned]?.setAttribute("aria-selected", "true");
    this.rove(query);
    this.describe();
    this.offerJumps();
    this.draw();
  }

  rove(query) {
    this.queries.querySelector("[tabindex='0']").tabIndex = -1;
    this.queries.children[query].tabIndex = 0;
  }

  key(event) {
    const query = placeOf(event);
    if (event.key === "Enter" || event.key === " ") this.pin(query);
    else if (event.key === "Escape") this.pin(this.pinned);
    else if (ARROWS[event.key]?.[0]) {
      const next = clamp(query + ARROWS[event.key][0], 0, this.part.queries.length - 1);
      this.rove(next);
      this.queries.children[next].focus();
    } else return;
    event.preventDefault();
  }

  /** Mark the keys of the active query with their percentages, and say the largest. */
  describe() {
    for (const row of this.keys.querySelectorAll(".seen")) {
      row.className = row.style.background = row.lastChild.textContent = "";
    }
    this.queries.querySelector(".active")?.classList.remove("active");
    const query = this.active;
    this.queries.children[query]?.classList.add("active");
    if (query < 0) {
      this.say("");
      return;
    }
    const means = this.means(query);
    for (const [key, weight] of means) this.markKey(this.keys.children[key], query, key, weight);
    const largest = means.slice(0, SHOWN_KEYS).filter(([, weight]) => weight >= 0.01)
      .map(([key, weight]) => `${this.keyNames[key]} ${percent(weight)}`);
    this.say(`${this.queryNames[query]} → ${largest.join(", ") || "no key has 1%"}`);
  }

  /** Of a text that does not fit: buttons that scroll to the keys of the pinned query. */
  offerJumps() {
    this.jumps.replaceChildren();
    if (this.pinned < 0 || this.box.scrollHeight <= this.box.clientHeight) return;
    const largest = this.means(this.pinned).slice(0, SHOWN_KEYS);
    const buttons = largest.map(([key, weight]) => element("button", {
      type: "button",
      onclick: () => { this.box.scrollTop = (key + 0.5) * ROW - this.box.clientHeight / 2; },
    }, `${this.keyNames[key]} ${percent(weight)}`));
    this.jumps.replaceChildren(`${this.queryNames[this.pinned]} → `, ...buttons);
  }

  /** The mean weight of each key over the heads that are shown, largest first. */
  means(query) {
    const sums = new Map();
    for (const { weights } of this.shown) {
      weights.forRow(query, (key, weight) => {
        sums.set(key, (sums.get(key) ?? 0) + weight / this.shown.length);
      });
    }
    return [...sums].filter(([, weight]) => weight >= 0.005).sort((a, b) => b[1] - a[1]);
  }

  markKey(row, query, key, weight) {
    row.className = "seen";
    row.lastChild.textContent = percent(weight);
    const stripes = this.shown.map(({ colour, weights }, i) => {
      const own = Math.round(65 * Math.sqrt(weights.weight(query, key)));
      const [from, to] = [i, i + 1].map((n) => `${(100 * n / this.shown.length).toFixed(2)}%`);
      return `color-mix(in srgb, ${colour} ${own}%, transparent) ${from} ${to}`;
    });
    row.style.background = `linear-gradient(90deg, ${stripes.join(", ")})`;
  }

  draw() {
    if (!this.box.clientWidth) return;
    const total = ROW * Math.max(this.part.queries.length, this.part.keys.length);
    const width = this.canvas.parentNode.clientWidth;
    const height = Math.min(this.box.clientHeight, total), top = this.box.scrollTop;
    const context = sized(this.canvas, width, height);
    const y = (place) => (place + 0.5) * ROW - top;
    const [first, last] = this.active >= 0 ? [this.active, this.active] : [
      Math.max(0, Math.floor(top / ROW)),
      Math.min(this.part.queries.length, Math.ceil((top + height) / ROW)) - 1];
    const crowded = this.shown.length > 1 ? 0.1 : this.part.queries.length > 100 ? 0.04 : 0.005;
    const least = this.active < 0 ? crowded : 0.005;  // lines of smaller weights are left out
    for (const { colour, weights } of this.shown) {
      context.strokeStyle = colour;
      for (let query = first; query <= last; query++) {
        weights.forRow(query, (key, weight) => {
          if (weight < least) return;
          context.globalAlpha = this.active < 0 ? Math.min(1, 0.04 + weight) : Math.sqrt(weight);
          context.lineWidth = 1 + 2.5 * weight;
          context.beginPath();
          context.moveTo(0, y(query));
          context.lineTo(width, y(key));
          context.stroke();
        });
      }
    }
  }
}

/** The place of the token that an event belongs to, or -1. */
function placeOf(event) {
  const row = event.target.closest("[role=option]");
  return row ? [...row.parentNode.children].indexOf(row) : -1;
}
