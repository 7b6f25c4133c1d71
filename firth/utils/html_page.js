"use strict";
(() => {
// A button beside each command copies it; without scripts the command can still be selected.
for (const box of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  box.append(button);
}

// Tooltips: the title of a cell, piece or point, shown under the pointer and for the keyboard.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "tooltip");
document.body.append(tip);
const CELLS = "[data-cells] [title], [data-cells] [data-tip], [data-cells] .point";

function tipText(cell) {
  const title = cell.querySelector(":scope > title");
  if (cell.dataset.tip === undefined) {
    cell.dataset.tip = title ? title.textContent : cell.getAttribute("title");
    cell.removeAttribute("title"); // or the browser would show a second tooltip
    title?.remove();
  }
  return cell.dataset.tip;
}

let current = null; // the cell whose tooltip is shown

function showTip(cell) {
  current = cell;
  tip.textContent = tipText(cell);
  tip.classList.add("shown");
  cell.setAttribute("aria-describedby", "tip");
  placeTip();
}

function placeTip() {
  if (!current) return;
  const box = current.getBoundingClientRect();
  const edge = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, edge))}px`;
  tip.style.top = `${above < 8 ? box.bottom + 8 : above}px`;
}

function hideTip() {
  current?.removeAttribute("aria-describedby");
  current = null;
  tip.classList.remove("shown");
}

for (const event of ["pointerover", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    const cell = target.closest?.(CELLS);
    hideTip();
    if (cell) showTip(cell);
  });
}
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", placeTip, true);
document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hideTip(); });

// Arrow keys move between the cells of a figure, of which one is in the order of the Tab key.
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function nextCell(cells, cell, [across, down]) {
  const row = cell.closest("tr");
  const column = [...(row?.cells ?? [])].indexOf(cell);
  for (let other = row; down && other; ) { // the next cell of the column that is not empty
    other = down > 0 ? other.nextElementSibling : other.previousElementSibling;
    if (other?.cells[column].matches(CELLS)) return other.cells[column];
  }
  return row && down ? null : cells[cells.indexOf(cell) + across + down];
}

for (const figure of document.querySelectorAll("[data-cells]")) {
  figure.querySelector(CELLS)?.setAttribute("tabindex", "0");
  figure.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const cells = [...figure.querySelectorAll(CELLS)];
    const next = nextCell(cells, event.target.closest(CELLS), STEPS[event.key]);
    if (!next) return;
    event.target.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

// A click on an entry of a legend highlights its points or line; a second one shows all again.
for (const legend of document.querySelectorAll(".groups")) {
  legend.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    const pressed = button.getAttribute("aria-pressed") !== "true";
    for (const other of legend.children) other.setAttribute("aria-pressed", other === button && pressed);
    for (const mark of legend.parentElement.querySelectorAll(":scope > svg > [data-group]")) {
      mark.classList.toggle("faint", pressed && mark.dataset.group !== button.dataset.group);
    }
  });
}

// Tabs: buttons for up to eight groups of figures, a slider for more.
const MOST_BUTTONS = 8;

function tabButtons(names, select) {
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  const buttons = names.map((name, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("role", "tab");
    button.addEventListener("click", () => select(number));
    return button;
  });
  list.append(...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const number = (buttons.indexOf(document.activeElement) + step + names.length) % names.length;
    select(number);
    buttons[number].focus();
  });
  const mark = (selected) => buttons.forEach((button, number) => {
    button.setAttribute("aria-selected", number === selected);
    button.tabIndex = number === selected ? 0 : -1;
  });
  return [list, mark];
}

function tabSlider(names, select, title) {
  const box = document.createElement("label");
  box.className = "slider";
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: names.length - 1, step: 1 });
  slider.setAttribute("aria-label", title);
  slider.addEventListener("input", () => select(slider.valueAsNumber));
  const name = document.createElement("output");
  box.append(slider, name);
  const mark = (selected) => {
    slider.value = selected;
    name.textContent = names[selected];
    slider.setAttribute("aria-valuetext", names[selected]);
  };
  return [box, mark];
}

for (const tabs of document.querySelectorAll(".tabs")) {
  const panels = [...tabs.querySelectorAll(":scope > .panel")];
  const names = panels.map((panel) => panel.querySelector("h4").textContent);
  const title = tabs.querySelector("h3")?.textContent ?? "";
  const select = (selected) => {
    mark(selected);
    panels.forEach((panel, number) => { panel.hidden = number !== selected; });
  };
  const make = names.length > MOST_BUTTONS ? tabSlider : tabButtons;
  const [control, mark] = make(names, select, title);
  if (make === tabButtons) {
    control.setAttribute("aria-label", title);
    panels.forEach((panel) => panel.setAttribute("role", "tabpanel"));
  }
  panels[0].before(control);
  tabs.classList.add("live");
  select(Number(tabs.dataset.selected));
}
})();
