"""`firth fill`: predict the words in the blanks of a text, or correct misspelt words."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

from firth.cli import options
from firth.cli.verbs import Output, null_rows, row_output
from firth.utils.errors import UsageError

EXAMPLES = (
    'firth fill bert-base-uncased "The [MASK] barked loudly." --top 3',
    'firth fill runs/encoder --correct "The dgo barked loudly."',
)
DEFAULT_TOP = 5
BLANK = r"\[MASK\]|<mask>|<extra_id_\d+>|___"


def fill(
    model: str = options.MODEL,
    text: str | None = options.Argument(
        None, metavar="[TEXT]", help="Text with blanks: [MASK], <mask>, <extra_id_0> or ___."
    ),
    file: str | None = options.DataOption(
        None,
        help="File of texts, one per line, or a table with a text column; - for standard input. "
        "Default: the TEXT.",
    ),
    column: str | None = options.DataOption(
        None, help="Column of a table with the text. Default: text."
    ),
    format: str | None = options.FORMAT,
    strict: bool = options.STRICT,
    device: str | None = options.DEVICE,
    dtype: str | None = options.DTYPE,
    top: int | None = options.OutputOption(
        None, min=1, help=f"Number of candidates per blank. Default: {DEFAULT_TOP}."
    ),
    targets: str | None = options.OutputOption(
        None, help="Score only these words: good,bad,ugly. Default: the whole vocabulary."
    ),
    correct: bool = options.OutputOption(
        False, "--correct", help="Suggest corrections for unlikely words."
    ),
    explain: bool = options.OutputOption(
        False,
        "--explain",
        help="Show tokens, ids, embeddings, layers, logits, softmax and loss of the TEXT.",
    ),
    answer: str | None = options.OutputOption(
        None,
        metavar="WORD",
        help="With --explain: the right word, to show its loss; for several blanks: cat,mat.",
    ),
    out: Path | None = options.OutputOption(
        None,
        help="With --file: JSON-lines file to write, one line per row; - for stdout. Default: "
        "print.",
    ),
    overwrite: bool = options.OVERWRITE,
) -> Output:
    """Predict the words in the blanks of a text, with probabilities; or correct misspelt words."""
    if (text is None) == (file is None):
        raise UsageError("Give a TEXT with blanks, or --file with one on each line.")
    if correct and (top is not None or targets is not None):
        raise UsageError("--correct suggests one correction per word: omit --top and --targets.")
    if targets is not None and top is not None:
        raise UsageError("All --targets are shown: omit --top.")
    if explain and (file is not None or correct or targets is not None):
        raise UsageError("--explain is for one TEXT: omit --file, --correct and --targets.")
    if answer is not None and not explain:
        raise UsageError("--answer is the right word for --explain: add --explain.")
    if out is not None and file is None:
        raise UsageError("--out is for --file; for one TEXT use --json.")
    options.check_jsonl(out, overwrite)
    if text is not None and (correct or not re.search(BLANK, text)):
        options.text_arguments([text], "--file")
    words = _parse_words(targets, "--targets") if targets is not None else []
    answers = _parse_words(answer, "--answer") if answer is not None else []
    if file is not None:
        options.check_source(file, format)
    from firth.cli.views import filling as view
    from firth.jobs.filling import fill_file
    from firth.jobs.row_streams import as_values

    loaded = options.load_model(model, dtype, device)
    candidates: dict[str, Any] = {"top": top or DEFAULT_TOP, "targets": list(dict.fromkeys(words))}
    if file is not None:
        bad_rows = null_rows(strict)
        rows = fill_file(
            loaded, file, correct=correct, column=column, format=format, bad=bad_rows, **candidates
        )
        return row_output(rows, lambda row: as_values(row.found), view.rows, out, bad_rows)
    text = options.terminal_text(text or "")
    if correct:
        corrected = loaded.correct(text)
        return Output(corrected.values(), view.corrected(corrected))
    filled = loaded.fill_texts([text], **candidates)[0]
    if not explain:
        return Output(filled.values(), view.filled(filled))
    from firth.cli.views.explanation import explained
    from firth.inference.explanation import explain_blanks

    found = explain_blanks(loaded.blank_filler(), text, answers=answers, top=candidates["top"])
    shown = chain(explained(found, loaded), view.filled(filled))
    return Output({**filled.values(), "explanation": found.values()}, shown)


def _parse_words(value: str, option: str) -> list[str]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} takes words separated by commas, such as good,bad.")
    return words
