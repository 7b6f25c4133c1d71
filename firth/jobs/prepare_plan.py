"""What `prepare` makes shards of: text, tokenizer and options, resolved and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from firth.data.corpus import Corpus
from firth.data.memory import Data
from firth.data.readers import ReadOptions
from firth.tokenizers.encoding import EncodedDocuments, EncodingJob, make_encoder
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError


@dataclass(frozen=True)
class PrepareJob:
    """Everything that determines the shards; can be sent to another process."""

    corpora: dict[str, Corpus]  # by split: validation text first
    tokenizer: str  # as JSON
    plan: dict[str, Any]  # hash of the tokenizer, states of the files, options

    @property
    def dedup(self) -> bool:
        """Whether duplicates are removed."""
        return bool(self.plan["options"]["dedup"])

    @property
    def shard_tokens(self) -> int:
        """Approximate number of tokens in a shard."""
        return int(self.plan["options"]["shard_tokens"])

    @property
    def batch_characters(self) -> int:
        """Characters in a batch; a shard is made of whole batches, so small ones need small."""
        return min(1 << 20, 4 * self.shard_tokens)

    @property
    def streams(self) -> list[str]:
        """The names of inputs that can be read only once."""
        sources = (source for corpus in self.corpora.values() for source in corpus.sources)
        return [source.name for source in sources if source.is_stream]

    @property
    def make_encoder(self) -> Callable[[], Callable[[EncodingJob], EncodedDocuments]]:
        """Return what builds the function that tokenizes, in a worker process."""
        options = self.plan["options"]
        return partial(make_encoder, self.tokenizer, options["clean"], options["fraction"])


def prepare_job(
    paths: Data,
    valid: Data,
    tokenizer: Tokenizer,
    reading: ReadOptions,
    *,
    clean: bool,
    valid_fraction: float | None,
    dedup: bool,
    shard_tokens: int,
) -> PrepareJob:
    """Find the files of the text, and check the options of `prepare`."""
    has_valid = not isinstance(valid, Sequence) or len(valid) > 0
    if has_valid and valid_fraction is not None:
        raise UsageError("Give --valid or --valid-fraction, not both.")
    fraction = 0.0 if has_valid else 0.01 if valid_fraction is None else valid_fraction
    if not 0 <= fraction < 1:
        raise UsageError(f"--valid-fraction must be at least 0 and below 1, not {fraction}.")
    corpora = {"valid": Corpus(valid, reading, clean=clean, name="valid")} if has_valid else {}
    corpora["train"] = Corpus(paths, reading, clean=clean)
    _number_sources(corpora)
    plan = _plan(tokenizer, corpora, dedup=dedup, fraction=fraction, shard_tokens=shard_tokens)
    job = PrepareJob(corpora, tokenizer.to_json(), plan)
    streams = job.streams
    if streams and (dedup or len(streams) > len(set(streams))):
        reason = "--dedup reads all text twice, but " if dedup else ""
        raise UsageError(f"{reason}{streams[0]} can be read only once: save it to a file first.")
    return job


def _plan(reader: Tokenizer, corpora: dict[str, Corpus], **options: Any) -> dict[str, Any]:
    """Everything that determines the content of the shards; resuming needs the same plan."""
    sources = {
        split: [source.state for source in corpus.sources] for split, corpus in corpora.items()
    }
    first = corpora["train"]
    options |= {**asdict(first.reading), "clean": first.clean}
    plan = {"tokenizer": reader.fingerprint, "sources": sources, "options": options}
    if first.source_names:
        plan["source_numbers"] = {split: c.source_numbers for split, c in corpora.items()}
        plan["source_names"] = first.source_names
    return plan


def _number_sources(corpora: dict[str, Corpus]) -> None:
    """Give the sources of the validation text their numbers in the training text."""
    names, valid = corpora["train"].source_names, corpora.get("valid")
    if valid is None:
        return
    if unknown := [name for name in valid.source_names if name not in names]:
        raise UsageError(f"--valid names the source {unknown[0]!r}, which the training text lacks.")
    if names and not valid.source_names:
        raise UsageError(f"Name the source of each --valid, such as --valid {names[0]}=PATH.")
    if names:
        valid.source_numbers = [names.index(valid.source_names[i]) for i in valid.source_numbers]
        valid.source_names = names
