"""`firth fill`: predict the words in the blanks of a text, or correct misspelt words."""

import re
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.cli import options
from firth.cli.verbs import Output, null_rows, row_output
from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.model import Model

EXAMPLES = (
    'firth fill bert-base-uncased "The [MASK] barked loudly." --top 3',
    'firth fill runs/encoder "The [MASK] barked loudly." --explain --answer dog',
    'firth fill runs/encoder "The [MASK] barked loudly." --compare runs/decoder',
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
    data: str | None = options.DataOption(
        None,
        metavar="FILE",
        help="With --compare: texts with one blank and the right word, a table with the columns "
        "text and answer (dog|puppy: either), to compute the accuracy of both models.",
    ),
    column: str | None = options.DataOption(
        None, help="Column of a table with the text. Default: text."
    ),
    format: str | None = options.FORMAT,
    strict: bool = options.STRICT,
    compare: str | None = options.ModelOption(
        None,
        metavar="MODEL",
        help="Another model that fills the same blank; a decoder, with the left context only.",
    ),
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
        help="The right word: --explain shows its loss, --compare its probability with both "
        "models. For several blanks: cat,mat.",
    ),
    out: Path | None = options.OutputOption(
        None,
        help="With --file: JSON-lines file to write, one line per row; - for stdout. Default: "
        "print.",
    ),
    overwrite: bool = options.OVERWRITE,
) -> Output:
    """Predict the words in the blanks of a text, with probabilities; or correct misspelt words."""
    several = sum(source is not None for source in (text, file, data)) != 1
    other_task = file is not None or correct or out is not None
    misuses = (
        (
            text is not None and (column or format or strict),
            "--column, --format and --strict are for --file and --data.",
        ),
        (several, "Give a TEXT with blanks, or --file with one on each line."),
        (data and not compare, "--data is for two models: add --compare MODEL, or use --file."),
        (
            compare and (other_task or explain),
            "--compare is for one TEXT or --data: omit --file, --out, --correct and --explain.",
        ),
        (
            data and (answer or targets or top),
            "--data has the right words: omit --answer, --targets and --top.",
        ),
        (
            correct and (top or targets),
            "--correct suggests one correction per word: omit --top and --targets.",
        ),
        (targets and top, "All --targets are shown: omit --top."),
        (
            explain and (other_task or targets),
            "--explain is for one TEXT: omit --file, --out, --correct and --targets.",
        ),
        (
            answer is not None and not (explain or compare),
            "--answer is the right word for --explain or --compare: add one of them.",
        ),
        (out and file is None, "--out is for --file; for one TEXT use --json."),
    )
    for wrong, message in misuses:
        if wrong:
            raise UsageError(message)
    options.check_jsonl(out, overwrite)
    if text is not None and (correct or not re.search(BLANK, text)):
        options.text_arguments([text], "--file")
    words = _parse_words(targets, "--targets") if targets is not None else []
    answers = _parse_words(answer, "--answer") if answer is not None else []
    if compare is not None and len(answers) > 1:
        raise UsageError("--compare fills one blank: give one word as --answer.")
    if file is not None or data is not None:
        options.check_source(file or data or "", format)
    from firth.cli.views import filling as view
    from firth.jobs.fill_comparison import compare_fill
    from firth.jobs.filling import fill_file
    from firth.jobs.row_streams import as_values

    loaded = options.load_model(model, dtype, device)
    candidates: dict[str, Any] = {"top": top or DEFAULT_TOP, "targets": list(dict.fromkeys(words))}
    if compare is not None:
        models = loaded, options.load_model(compare, dtype, device)
        if data is not None:
            return _compare_accuracy(models, data, column=column, format=format, strict=strict)
        compared = compare_fill(
            *models,
            options.terminal_text(text or ""),
            answer=answers[0] if answers else None,
            **candidates,
        )
        return Output(compared.values(), view.compared(compared))
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


def _compare_accuracy(models: tuple["Model", "Model"], data: str, **reading: Any) -> Output:
    from firth.cli.views import filling as view
    from firth.jobs.fill_comparison import compare_fill_accuracy

    found = compare_fill_accuracy(*models, data, **reading)
    for note in found.notes:
        print(note, file=sys.stderr)
    return Output(found.values(), view.accuracies(found))


def _parse_words(value: str, option: str) -> list[str]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} takes words separated by commas, such as good,bad.")
    return words
