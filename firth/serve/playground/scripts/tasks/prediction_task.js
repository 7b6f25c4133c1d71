// What the tasks of fine-tuned models share: a form with a model and the task's own fields.

import { tabForm } from "../tab_form.js";
import { curl } from "../code_samples.js";
import { modelChoice } from "../fields.js";
import { postJson } from "../api.js";
import { sourceOf } from "../models.js";

/** Make a task whose route is `/ID`; its title is also the name of its button. */
export function predictionTask({ id, title, missing, empty, makeFields, body, show, samples }) {
  const build = (models) => {
    const fields = [modelChoice(models), ...makeFields()];
    return tabForm({
      id,
      fields,
      layout: fields.map((field) => field.element),
      action: title,
      empty,
      run: async (values, result, signal) =>
        show(result, values, await postJson(`/${id}`, body(values), signal)),
      samples: (values) => ({
        ...samples(sourceOf(models, values.model), values),
        curl: curl(`/${id}`, body(values)),
      }),
    }).element;
  };
  return { id, title, missing, build };
}
