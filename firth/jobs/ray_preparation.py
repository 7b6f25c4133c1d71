"""`prepare --engine ray`: the parts as tasks of a Ray cluster, then joined on this machine.

All machines of the cluster need the input files and the folder of `--out` under the same paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firth.data.corpus_parts import Part, default_parts
from firth.jobs.merge_parts import merge_parts
from firth.jobs.part_duplicates import has_duplicates
from firth.jobs.part_files import SHARDS, SIGNATURES
from firth.jobs.prepare_output import PrepareResult
from firth.jobs.prepare_parts import prepare_part
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.counting import Progress
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.ray_tasks import RayTasks, ray_tasks


def prepare_with_ray(
    job: PrepareJob,
    folder: Path,
    out: Path,
    reader: Tokenizer,
    parts: int | None,
    progress: Progress,
) -> PrepareResult:
    """Make all parts that are missing as tasks on a Ray cluster, and join them."""
    count = _existing_parts(folder) or parts or default_parts(list(job.corpora.values()))
    with ray_tasks() as run:
        if job.dedup and not has_duplicates(folder, job):
            _make_parts(job, folder, count, run, progress)
            merge_parts(job, folder, out, reader, run, progress)
        _make_parts(job, folder, count, run, progress)
        return merge_parts(job, folder, out, reader, run, progress)


def _existing_parts(folder: Path) -> int:
    """Return the number of parts of an interrupted run, or 0."""
    found = [path.name for kind in (SIGNATURES, SHARDS) for path in folder.glob(f"{kind}-*-of-*")]
    return int(found[0].rpartition("-")[2]) if found else 0


def _make_parts(
    job: PrepareJob, folder: Path, count: int, run: RayTasks, progress: Progress
) -> None:
    parts = [Part(number, count) for number in range(1, count + 1)]
    made = run.as_completed(_PartTask(job, folder), parts)
    for done, _ in enumerate(made, 1):
        progress("preparing parts", done, count)


@dataclass(frozen=True)
class _PartTask:
    """Make one part in this process."""

    job: PrepareJob
    folder: Path

    def __call__(self, part: Part) -> None:
        prepare_part(self.job, self.folder, part, 1, lambda what, done, total: None)
