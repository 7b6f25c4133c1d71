"""Study: the claims of the lectures, each beside what was measured.

All studies share one cache of cells.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from firth.study.claim_table import Claim, read_claims
from firth.study.engine.settings import make_settings
from firth.study.engine.study import Finding, Study, StudyAnalysis, StudyRun
from firth.study.engine.study_result import VERDICTS
from firth.study.registry import STUDIES, study_named
from firth.study.running import run_study
from firth.utils.config_fields import Doc
from firth.utils.errors import FirthError, Interrupted, StorageError, UsageError, suggest
from firth.utils.figures import Bar, BarChart, DataTable
from firth.utils.files import atomic_file

NAME = "claims"
PAGE = "claims.md"
OWN_DOMAINS = ("domain-shift",)  # whose --data and --test are not a training and a test set
WHERE = ("--out", "--cells", "--workers", "--device")  # options that change no result
COLUMNS = ("lecture", "claim", "claimed", "measured", "95 % interval", "verdict", "study")


@dataclass(frozen=True, kw_only=True)
class ClaimSettings:
    """Settings of the study."""

    studies: Annotated[tuple[str, ...], Doc("Studies that are run.")] = tuple(
        dict.fromkeys(claim.study for claim in read_claims())
    )
    overrides: Annotated[
        tuple[str, ...], Doc("Settings of the studies, such as strategies.labels=1000.")
    ] = ()

    def __post_init__(self) -> None:
        known = [name for name in STUDIES if name != NAME]
        for name in self.studies:
            if name not in known:
                raise UsageError(f"There is no study {name!r} of claims; {suggest(name, known)}")
        for name, _ in self._changed():
            if name.partition(".")[0] not in self.studies:
                names = ", ".join(self.studies)
                raise UsageError(f"{name} in overrides is no setting of the studies {names}.")

    def of(self, study: str) -> dict[str, str]:
        """Return the overrides of one study.

        >>> ClaimSettings(overrides=("labels.labels=10", "100", "masking.words=9")).of("labels")
        {'labels': '10,100'}
        """
        named = [(name.partition("."), value) for name, value in self._changed()]
        return {setting: value for (owner, _, setting), value in named if owner == study}

    def _changed(self) -> list[tuple[str, str]]:
        """Return names and values; a part without = is a further item of the value before it."""
        found: list[tuple[str, str]] = []
        for part in self.overrides:
            name, equals, value = part.partition("=")
            if not equals and not found:
                raise UsageError(f"overrides are such as labels.shots=2, not {part!r}.")
            if not equals:
                name, value = found.pop()
                value = f"{value},{part}"
            found.append((name, value))
        return found


def run_claims(run: StudyRun) -> StudyAnalysis:
    """Run the studies of all claims, and put what they found beside each claim."""
    for name in run.settings.studies:  # raises an error for a wrong setting before all runs
        make_settings(study_named(name), run.budget, run.settings.of(name))
    findings: dict[str, dict[str, Finding]] = {}
    commands: dict[str, str] = {}
    missing = {
        name: f"The study {name} has no such finding with this data and these settings."
        for name in run.settings.studies
    }
    for name in run.settings.studies:
        found = _run_study(run, name)
        if isinstance(found, FirthError):
            missing[name] = f"The study {name} failed: {found}"
            run.note(missing[name])
            continue
        findings[name] = {finding.name: finding for finding in found.analysis.findings}
        commands[name] = _repeatable(found.command, name)
    claims = [claim for claim in read_claims() if claim.study in run.settings.studies]
    rows = [
        _row(claim, findings.get(claim.study, {}), missing[claim.study], commands)
        for claim in claims
    ]
    _write_markdown(run, rows)
    return StudyAnalysis(
        rows=rows,
        findings=[_verdict(rows)],
        figures=[_chart(rows), DataTable("", COLUMNS, tuple(map(_cells, rows)), texts=True)],
    )


def _run_study(run: StudyRun, name: str) -> Any:
    """Run one study with the inputs that it takes; return an error that concerns it alone."""
    options = partial(run_study, name, out=run.out / name, cells=run.cache.folder)
    try:
        return options(
            budget=run.budget,
            seeds=len(run.seeds),
            seed=run.seeds[0],
            workers=run.workers,
            device=run.cache.device,
            on_result=run.add,
            overrides=run.settings.of(name),
            **_given(run, study_named(name)),
        )
    except (Interrupted, StorageError):
        raise
    except FirthError as error:
        return error


def _repeatable(command: str, name: str) -> str:
    """Leave out of a command what does not change its result.

    >>> _repeatable("firth study labels --out a/labels --seeds 3 --cells a/cells", "labels")
    'firth study labels --seeds 3 --out labels'
    """
    parts = shlex.split(command)
    dropped = {place + end for place, part in enumerate(parts) if part in WHERE for end in (0, 1)}
    kept = [part for place, part in enumerate(parts) if place not in dropped]
    return shlex.join([*kept, "--out", name])


def _given(run: StudyRun, study: Study) -> dict[str, Any]:
    """Return the inputs that a study takes, and note those that it cannot use."""
    given = {name: getattr(run.inputs, name) for name in run.inputs.given()}
    if study.name in OWN_DOMAINS:
        if given:
            run.note(f"{study.name} used the stories: its files are two domains.")
        return {}
    takes = (*study.takes, *(["columns"] if "data" in study.takes else []))
    given = {name: value for name, value in given.items() if name in takes}
    if len(given.get("models", ())) > 1 and not study.several_models:
        given["models"] = given["models"][:1]
        run.note(f"{study.name} used the first model only.")
    return given


def _row(
    claim: Claim, findings: Mapping[str, Finding], missing: str, commands: Mapping[str, str]
) -> dict[str, Any]:
    """Put a finding beside a claim, or say why it is missing."""
    found = findings.get(claim.finding)
    holds = None if found is None else claim.holds(found)
    return {
        "source": claim.source,
        "claim": claim.claim,
        "claimed": claim.claimed,
        "measured": _measured(found),
        "interval": _interval(found),
        "text": missing if found is None else found.text,
        "holds": holds,
        "verdict": "not measured" if found is None else VERDICTS[holds],
        "study": claim.study,
        "finding": claim.finding,
        "command": commands.get(claim.study, f"firth study {claim.study} --out {claim.study}"),
    }


def _measured(found: Finding | None) -> str:
    """Format the value of a finding, or where the data ends if it is beyond."""
    if found is None or (found.value is None and found.beyond is None):
        return "–"
    unit = f" {found.unit}" if found.unit else ""
    if found.value is None:
        return f"more than {_digits(found.beyond or 0.0)}{unit}"
    return f"{_number(found, found.value)}{unit}"


def _interval(found: Finding | None) -> str:
    if found is None or found.low is None:
        return "–"
    if found.high is None:
        return f"{_number(found, found.low)} and more"
    return f"{_number(found, found.low)} to {_number(found, found.high)}"


def _number(found: Finding, value: float) -> str:
    if found.smallest is not None and value < found.smallest:
        return f"fewer than {_digits(found.smallest)}"
    return _digits(value)


def _digits(value: float) -> str:
    """Format a number with three digits, or all before the point.

    >>> _digits(0.12345), _digits(10_000.0)
    ('0.123', '10,000')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("source", "claim", "claimed", "measured", "interval", "verdict", "study")
    return tuple(str(row[name]) for name in names)


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    verdicts = [row["verdict"] for row in rows]
    return {name: verdicts.count(name) for name in (*VERDICTS.values(), "not measured")}


def _verdict(rows: Sequence[Mapping[str, Any]]) -> Finding:
    counts = _counts(rows)
    found = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    text = f"{len(rows)} claims of the lectures; {found}."
    return Finding(name="claims", text=text, holds=None, value=counts["holds"])


def _chart(rows: Sequence[Mapping[str, Any]]) -> BarChart:
    bars = tuple(Bar(name, count) for name, count in _counts(rows).items() if count)
    return BarChart("Claims", bars, scale=float(len(rows) or 1))


def _write_markdown(run: StudyRun, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table as Markdown, with the sentence of each finding."""
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    table = ["| " + " | ".join(map(_escaped, _cells(row))) + " |" for row in rows]
    sentences = [f"- *{row['claim']}* ({row['source']}): {row['text']}" for row in rows]
    commands = ["```", *dict.fromkeys(row["command"] for row in rows), "```"]
    title = f"## Budget {run.budget}: {_inputs_text(run)}, {len(run.seeds)} seeds"
    text = [title, "", _verdict(rows).text, "", *head, *table, "", *sentences, "", *commands, ""]
    with atomic_file(run.out / PAGE) as file:
        file.write("\n".join(text).encode())


def _inputs_text(run: StudyRun) -> str:
    """Name the data and the models."""
    if not run.inputs.given():
        return "the stories and the embedded models"
    data = [path for path in (run.inputs.data, run.inputs.text) if path is not None]
    models = [Path(name).name for name in run.inputs.models]
    return ", ".join(["/".join(path.parts[-2:]) for path in data] + models)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


STUDY = Study(
    name=NAME,
    question="Which claims of the lectures hold on this data?",
    settings=ClaimSettings,
    run=run_claims,
    takes=("data", "test", "task", "text", "models"),
    several_models=True,
)
