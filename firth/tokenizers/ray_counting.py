"""Word counts for `tokenizer train --engine ray`: parts of a corpus, counted on a Ray cluster.

Counts are sums, so they do not depend on the number of parts or on their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from firth.data.corpus import Corpus, CorpusReport
from firth.data.corpus_parts import Part, PartReader, default_parts, document_batch, grouped
from firth.tokenizers.counting import CountedPieces, Progress, piece_counter
from firth.utils.bad_rows import MAX_REPORTED
from firth.utils.errors import UsageError
from firth.utils.ray_tasks import ray_tasks

NumberedError = tuple[Any, ...]  # corpus, file, block; then the message


def count_parts(corpus: Corpus, progress: Progress) -> Iterator[CountedPieces]:
    """Yield the counts of pieces of each part and source; at last the errors of the first rows."""
    if streams := [source.name for source in corpus.sources if source.is_stream]:
        raise UsageError(f"--engine ray needs files: save {streams[0]} to one first.")
    count = default_parts([corpus])
    errors: list[NumberedError] = []
    with ray_tasks() as run:
        parts = [Part(number, count) for number in range(1, count + 1)]
        made = run.as_completed(_CountTask(corpus), parts)
        for done, (_, (counted, found)) in enumerate(made, 1):
            yield from counted
            errors += found
            progress("counting words", done, count)
    first = [error for *_, error in sorted(errors, key=lambda error: error[:3])[:MAX_REPORTED]]
    yield None, Counter(), CorpusReport(errors=first)


@dataclass(frozen=True)
class _CountTask:
    """Count the pieces of one part in this process."""

    corpus: Corpus

    def __call__(self, part: Part) -> tuple[list[CountedPieces], list[NumberedError]]:
        count = piece_counter(self.corpus.clean)
        counts: dict[int | None, Counter[str]] = {}
        reports: dict[int | None, CorpusReport] = {}
        errors: list[NumberedError] = []
        for blocks in grouped(PartReader([self.corpus], part)):
            source, found, report = count(document_batch(blocks))
            errors += [(*block.key, error) for block in blocks for error in block.errors]
            report.errors = []
            counts.setdefault(source, Counter()).update(found)
            reports.setdefault(source, CorpusReport()).add(report)
        return [(one, counts[one], reports[one]) for one in counts], errors[:MAX_REPORTED]
