// Classify, tag and answer: the tasks that a model was fine-tuned for.

import { element, arrowKeys } from "../dom.js";
import { missing, modelsWith } from "../models.js";
import { classify } from "../tasks/classify.js";
import { tag } from "../tasks/tag.js";
import { answer } from "../tasks/answer.js";

const TASKS = [classify, tag, answer];

export const predict = {
  id: "predict",
  title: "Classify · Tag · Answer",
  lead: "Use a fine-tuned model: label texts, mark words, or find the answer to a question.",
  build(models) {
    const panels = TASKS.map((task) => {
      const able = modelsWith(models, task.id);
      return element(
        "div",
        { role: "tabpanel", "aria-labelledby": `task-${task.id}`, id: `task-panel-${task.id}` },
        able.length ? task.build(able) : missing(task.missing),
      );
    });
    const tabs = TASKS.map((task, place) =>
      element(
        "button",
        {
          type: "button",
          role: "tab",
          id: `task-${task.id}`,
          "aria-controls": `task-panel-${task.id}`,
          onclick: () => show(place),
        },
        task.title,
      ),
    );
    const show = (chosen) =>
      tabs.forEach((tab, place) => {
        tab.setAttribute("aria-selected", place === chosen);
        tab.setAttribute("tabindex", place === chosen ? 0 : -1);
        panels[place].hidden = place !== chosen;
      });
    const first = TASKS.findIndex((task) => modelsWith(models, task.id).length);
    show(Math.max(0, first));
    const list = element(
      "div",
      {
        role: "tablist",
        class: "tasks",
        "aria-label": "Task",
        onkeydown: (event) =>
          arrowKeys(event, tabs, (place) => {
            show(place);
            tabs[place].focus();
          }),
      },
      tabs,
    );
    return element("div", {}, list, panels);
  },
};
