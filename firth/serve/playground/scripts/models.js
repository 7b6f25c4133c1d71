// The served models, as /v1/models lists them.

import { element, withCode } from "./dom.js";

/** The models with at least one of the capabilities. */
export function modelsWith(models, ...capabilities) {
  return models.filter((model) => capabilities.some((one) => model.capabilities.includes(one)));
}

/** The name or path that a command line needs for a model. */
export function sourceOf(models, id) {
  return models.find((model) => model.id === id)?.root ?? id;
}

/** Say which model a tab needs. */
export function missing(sentence) {
  return element("p", { class: "missing" }, withCode(sentence));
}
