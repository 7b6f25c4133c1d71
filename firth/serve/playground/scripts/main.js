// The tabs of the page. A tab is {id, title, lead, build(models)}; it is built when first opened.

import { arrowKeys, element, withCode } from "./dom.js";
import { getJson, RequestError } from "./api.js";
import { fill } from "./tabs/fill.js";
import { generate } from "./tabs/generate.js";
import { predict } from "./tabs/predict.js";
import { search } from "./tabs/search.js";
import { prompt } from "./tabs/prompt.js";
import { attention } from "./tabs/attention.js";
import { masking } from "./tabs/masking.js";

const TABS = [fill, generate, predict, search, prompt, attention, masking];
const list = document.getElementById("tabs"),
  panels = document.getElementById("panels");
const served = document.getElementById("served");
const RETRY_MS = 1000;
let models = [];

const buttons = TABS.map((tab) =>
  element(
    "button",
    {
      type: "button",
      role: "tab",
      id: `tab-${tab.id}`,
      "aria-controls": `panel-${tab.id}`,
      onclick: () => select(tab),
    },
    tab.title,
  ),
);
list.append(...buttons);
list.addEventListener("keydown", (event) =>
  arrowKeys(event, buttons, (place) => {
    select(TABS[place]);
    buttons[place].focus();
  }),
);

/** Show a tab, and write its name into the address. */
function select(tab) {
  history.replaceState(null, "", `#${tab.id}`);
  show(tab);
}

function show(tab) {
  TABS.forEach((other, place) => {
    buttons[place].setAttribute("aria-selected", other === tab);
    buttons[place].setAttribute("tabindex", other === tab ? 0 : -1);
    const panel = document.getElementById(`panel-${other.id}`);
    if (panel) panel.hidden = other !== tab;
  });
  buttons[TABS.indexOf(tab)].scrollIntoView({ block: "nearest", inline: "nearest" });
  if (!document.getElementById(`panel-${tab.id}`)) panels.append(makePanel(tab));
}

function makePanel(tab) {
  return element(
    "section",
    { role: "tabpanel", id: `panel-${tab.id}`, "aria-labelledby": `tab-${tab.id}` },
    element("p", { class: "lead" }, tab.lead),
    tab.build(models),
  );
}

const fromAddress = () => TABS.find((tab) => `#${tab.id}` === location.hash);

/** Wait for the server to load its models. */
async function untilLoaded() {
  for (;;) {
    try {
      return await getJson("/health");
    } catch (error) {
      if (error.status !== 503) throw error;
      served.textContent = "The server is loading its models …";
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

async function open() {
  panels.replaceChildren();
  try {
    await untilLoaded();
    models = (await getJson("/v1/models")).data;
    const names = models.map((model) => model.id).join(", ");
    served.textContent = `${models.length} ${models.length === 1 ? "model" : "models"}: ${names}`;
    served.title = names;
    show(fromAddress() ?? TABS[0]);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    served.textContent = "";
    panels.replaceChildren(
      element(
        "section",
        {},
        element("p", { class: "failure", role: "alert" }, withCode(error.message)),
        element("button", { type: "button", class: "primary", onclick: open }, "Try again"),
      ),
    );
  }
}

addEventListener("hashchange", () => {
  if (models.length && fromAddress()) show(fromAddress());
});
open();
