// Fill: candidates for each blank of a text.

import { element, bars, visible } from "../dom.js";
import { tabForm } from "../tab_form.js";
import { command, curl, pythonPrint, pythonScript } from "../code_samples.js";
import { modelChoice, number, row, textArea, textLine } from "../fields.js";
import { postJson } from "../api.js";
import { missing, modelsWith, sourceOf } from "../models.js";

const BLANK = "[MASK]";

export const fill = {
  id: "fill",
  title: "Fill",
  lead: "Predict the words in the blanks of a text.",
  build(models) {
    const able = modelsWith(models, "fill");
    if (!able.length) {
      return missing(
        "No served model fills blanks; a masked language model such as stories-encoder does.",
      );
    }
    const text = textArea("text", "Text", {
      value: `The [MASK] barked loudly at the mailman.`,
      hint: "A blank is [MASK] or ___.",
    });
    const targets = textLine("targets", "Only these words", { placeholder: "dog, cat, mailman" });
    const fields = [
      modelChoice(able),
      text,
      number("top", "Candidates", { min: 1, max: 50, value: 8 }),
      targets,
    ];
    return tabForm({
      id: "fill",
      fields,
      action: "Fill",
      layout: [fields[0].element, text.element, insertButton(text), row(fields[2], targets)],
      examples: {
        "an animal": { text: "The [MASK] barked loudly at the mailman.", targets: "" },
        "two blanks": { text: "The [MASK] jumped over the [MASK].", targets: "" },
        "chosen words": { text: "The old man was very [MASK].", targets: "happy, sad, tired" },
      },
      empty: "The candidates for each blank appear here, with their probabilities.",
      run: async (values, result, signal) =>
        show(result, values.text, await postJson("/fill", body(values), signal)),
      samples: (values) => samples(models, values),
    }).element;
  },
};

/** A button that puts a blank at the cursor, in place of what is selected. */
function insertButton(text) {
  return element(
    "button",
    {
      type: "button",
      class: "quiet insert",
      onclick: () => {
        const { selectionStart, selectionEnd } = text.control;
        text.control.setRangeText(BLANK, selectionStart, selectionEnd, "end");
        text.control.dispatchEvent(new Event("input", { bubbles: true }));
        text.control.focus();
      },
    },
    "Insert a blank",
  );
}

const words = (values) =>
  values.targets
    .split(",")
    .map((word) => word.trim())
    .filter(Boolean);

function body(values) {
  const chosen = words(values);
  const how = chosen.length ? { targets: chosen } : { top: values.top };
  return { model: values.model, text: values.text, ...how };
}

function show(result, text, { predictions }) {
  const blanks = Array.isArray(predictions[0]) ? predictions : [predictions];
  result.replaceChildren(
    ...blanks.map((candidates, place) =>
      element(
        "div",
        { class: "block" },
        blanks.length > 1 ? element("h3", {}, `Blank ${place + 1}`) : null,
        bars(
          candidates.map(({ token, score }) => ({ name: token, value: score })),
          `Blank ${place + 1}`,
        ),
      ),
    ),
    element("p", { class: "filled" }, ...filled(text, blanks)),
  );
}

/** The text with the best candidate in each blank. */
function filled(text, blanks) {
  const pieces = text.split(/\[MASK\]|<mask>|<extra_id_\d+>|___/);
  if (pieces.length !== blanks.length + 1) return [blanks[0][0]?.text ?? ""];
  return pieces.flatMap((piece, place) =>
    place ? [element("mark", {}, visible(blanks[place - 1][0]?.token ?? "")), piece] : [piece],
  );
}

function samples(models, values) {
  const chosen = words(values),
    source = sourceOf(models, values.model);
  const top = chosen.length ? "" : values.top;
  const targets = chosen.length ? chosen : "";
  return {
    shell: command("fill", [source, values.text], { top, targets: chosen.join(",") }),
    python: pythonScript(pythonPrint("firth.fill", [source, values.text], { top, targets })),
    curl: curl("/fill", body(values)),
  };
}
