"""`prepare --engine ray`: the parts as tasks of a Ray cluster, then joined on this machine.

All machines of the cluster need the input files and the folder of `--out` under the same paths, or
as URLs of an object store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firth.data.corpus_parts import Part, default_parts
from firth.jobs.merge_parts import merge_parts
from firth.jobs.output_place import OutputPlace
from firth.jobs.part_duplicates import local_tasks
from firth.jobs.part_files import SHARDS, SIGNATURES
from firth.jobs.prepare_output import PrepareResult
from firth.jobs.prepare_parts import prepare_part
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.counting import Progress
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError
from firth.utils.ray_tasks import RayTasks, ray_tasks


def prepare_with_ray(
    job: PrepareJob, place: OutputPlace, reader: Tokenizer, parts: int | None, progress: Progress
) -> PrepareResult:
    """Make all parts that are missing as tasks on a Ray cluster, and join them."""
    existing = _existing_parts(place)
    if parts and existing and parts != existing:
        where = place.folder if place.url is None else f"{place.url}.parts"
        raise UsageError(
            f"{where} has parts of an interrupted run with {existing} parts, not {parts}: omit "
            "--parts to continue it, or remove them."
        )
    count = existing or parts or default_parts(list(job.corpora.values()))
    with ray_tasks() as run:
        # With a URL, the folder of the parts is on this machine alone.
        join = run if place.url is None else local_tasks(None)
        for _ in range(2 if job.dedup else 1):
            _make_parts(job, place, count, run, progress)
            place.pull()
            result = merge_parts(job, place.folder, place.out, reader, join, progress)
            result = place.push(result)
            if result.stage == "shards":
                break
    return replace(result, resumed=existing > 0)


def _existing_parts(place: OutputPlace) -> int:
    """Return the number of parts of an interrupted run, or 0."""
    found = [name for name in place.part_names() if name.startswith((SIGNATURES, SHARDS))]
    return int(found[0].rpartition("-")[2]) if found else 0


def _make_parts(
    job: PrepareJob, place: OutputPlace, count: int, run: RayTasks, progress: Progress
) -> None:
    parts = [Part(number, count) for number in range(1, count + 1)]
    made = run.as_completed(_PartTask(job, place), parts)
    for done, _ in enumerate(made, 1):
        progress("preparing parts", done, count)


@dataclass(frozen=True)
class _PartTask:
    """Make one part in this process."""

    job: PrepareJob
    place: OutputPlace

    def __call__(self, part: Part) -> None:
        self.place.pull_part(part)
        quiet = lambda what, done, total: None  # noqa: E731
        self.place.push(prepare_part(self.job, self.place.folder, part, 1, quiet))
