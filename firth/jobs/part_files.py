"""Directories of parts: complete under their names, and checked before they are used.

    OUT.parts/  signatures-00001-of-00008/  with --dedup: signatures of the documents
                duplicates/                 with --dedup: which documents are duplicates
                shards-00001-of-00008/      tokens of the part, and how they are to be joined

Each has a `manifest.json`, written last: versions, tokenizer, options, states of the input files,
counts and the SHA-256 checksums of its files.
"""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

import firth
from firth.data.corpus_parts import DocumentBlock, Part, PartReader
from firth.jobs.prepare_plan import PrepareJob
from firth.utils.errors import InputError, MismatchError, storage_errors
from firth.utils.files import locked, sha256, sync_directory, write_array, write_json

MANIFEST, BLOCKS = "manifest.json", "blocks.npy"
SHARDS, SIGNATURES, DUPLICATES = "shards", "signatures", "duplicates"
BlockRow = tuple[int, int, int, int]  # corpus, file, number of the block, documents
KEPT = "Parts that are complete are kept: free some space and run the command again."


def parts_folder(out: Path) -> Path:
    """Return the directory of the parts of shards."""
    return out.with_name(f"{out.name}.parts")


def part_path(folder: Path, kind: str, part: Part) -> Path:
    """Return the directory of one part."""
    return folder / f"{kind}-{part.name}"


def versions() -> dict[str, str]:
    """Return the versions of what the content of shards depends on."""
    return {
        "Firth": firth.__version__,
        "tokenizers": tokenizers.__version__,
        "Unicode (of Python)": unicodedata.unidata_version,
    }


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Make a directory that gets its name when it is complete; a killed one is made again."""
    temporary = target.with_name(f".{target.name}.tmp")
    with storage_errors(target, KEPT):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(f".{target.name}.lock"), f"writing {target}"):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                yield temporary
                shutil.rmtree(target, ignore_errors=True)  # a damaged one
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_directory(target.parent)


def write_manifest(folder: Path, job: PrepareJob, **values: Any) -> None:
    """Write the manifest of a directory, with the checksums of the files in it."""
    sums = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    made = {"versions": versions(), "plan": job.plan}
    write_json(folder / MANIFEST, {**made, **values, "sha256": sums})


def write_part_manifest(
    folder: Path, job: PrepareJob, reader: PartReader, blocks: list[BlockRow], **values: Any
) -> None:
    """Write the table of a part's blocks, and its manifest."""
    write_array(folder / BLOCKS, np.array(blocks, dtype=np.int64).reshape(-1, 4))
    counts = {f"{place.corpus}/{place.file}": n for place, n in reader.counts.items()}
    inputs = _input_checksums(job, reader)
    write_manifest(folder, job, part=str(reader.part), inputs=inputs, blocks=counts, **values)


def block_rows(blocks: list[DocumentBlock]) -> list[BlockRow]:
    """Return the corpus, file, number and number of documents of each block."""
    return [(*block.key, len(block.texts)) for block in blocks]


def _input_checksums(job: PrepareJob, reader: PartReader) -> dict[str, str]:
    """Return the checksum of each file that was read; one that has changed is an error."""
    sums = {}
    splits = list(job.corpora)
    for place in reader.places:
        source = reader.corpora[place.corpus].sources[place.file]
        if source.state != job.plan["sources"][splits[place.corpus]][place.file]:
            raise InputError(f"{source.name} was changed while it was read; start again.")
        if os.path.isfile(source.name):
            sums[source.name] = sha256(Path(source.name))
    return sums


def all_blocks(parts: list[tuple[Path, dict[str, Any]]]) -> NDArray[np.int64]:
    """Return the blocks of all parts in reading order: corpus, file, number, documents, part.

    A block that is missing or twice there is an error: then a file was changed in between.
    """
    tables = [np.load(path / BLOCKS, allow_pickle=False) for path, _ in parts]
    owners = np.repeat(np.arange(len(parts)), [len(table) for table in tables])
    rows = np.column_stack([np.concatenate(tables), owners])
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    expected: dict[str, int] = {}
    sums: dict[str, str] = {}
    for path, manifest in parts:
        for known, found in ((expected, manifest["blocks"]), (sums, manifest["inputs"])):
            for key, value in found.items():
                if known.setdefault(key, value) != value:
                    raise MismatchError(f"{path} was made of other text than the parts before it.")
    keys = [
        (*map(int, key.split("/")), number) for key, n in expected.items() for number in range(n)
    ]
    if sorted(keys) != [tuple(row) for row in rows[:, :3].tolist()]:
        raise MismatchError(
            f"The parts in {parts[0][0].parent} do not cover the text; remove them and start again."
        )
    return rows


def read_manifest(folder: Path, job: PrepareJob) -> dict[str, Any] | None:
    """Read and check the manifest of a directory; None if it is missing or files are damaged.

    One of another tokenizer, other options, versions or input files is an error.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        _check_manifest(folder, manifest, job.plan)
        sums = manifest["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no manifest of a part ({error!r}); remove {folder}."
        ) from error
    files = {name: folder / name for name in sums}
    if any(not file.is_file() or sha256(file) != sums[name] for name, file in files.items()):
        return None
    return manifest


def _check_manifest(folder: Path, manifest: dict[str, Any], plan: dict[str, Any]) -> None:
    for name, version in versions().items():
        if (other := manifest["versions"].get(name)) != version:
            raise _mismatch(folder, f"with {name} {other}, and this is {version}")
    made = manifest["plan"]
    if made["tokenizer"] != plan["tokenizer"]:
        raise _mismatch(folder, "with another tokenizer")
    for name, value in plan["options"].items():
        if (other := made["options"].get(name)) != value:
            raise _mismatch(folder, f"with the option {name}={other}, not {value}")
    if made != plan:
        raise _mismatch(folder, f"before {_changed_file(made, plan)} was changed")


def _changed_file(made: dict[str, Any], plan: dict[str, Any]) -> str:
    """Return the name of the first file whose path, size or time of modification differs."""
    for split, states in plan["sources"].items():
        before = made["sources"].get(split, [])
        for state, other in zip(states, before, strict=False):
            if state != other:
                return str(state[0])
        if len(states) != len(before):
            return "the list of files"
    return "the list of sources"


def _mismatch(folder: Path, why: str) -> MismatchError:
    return MismatchError(f"{folder} was made {why}; make it again after removing it.")


def find_parts(folder: Path, kind: str, job: PrepareJob) -> list[tuple[Path, dict[str, Any]]]:
    """Return the directories and manifests of all parts; a missing or damaged one is an error."""
    names = sorted(path.name for path in folder.glob(f"{kind}-*-of-*"))
    counts = {int(name.rpartition("-")[2]) for name in names}
    if not counts:
        raise InputError(f"{folder} has no parts; make them with --part 1/N to --part N/N.")
    if len(counts) > 1:
        known = " and of ".join(map(str, sorted(counts)))
        raise MismatchError(f"{folder} has parts of {known}; remove those of one division.")
    parts = [Part(number, *counts) for number in range(1, max(counts) + 1)]
    found = {part: read_manifest(part_path(folder, kind, part), job) for part in parts}
    if missing := [str(part) for part, manifest in found.items() if manifest is None]:
        raise InputError(
            f"{folder} lacks the part{'s' * (len(missing) > 1)} {', '.join(missing)} (missing or "
            f"damaged); run the command again with --part {missing[0]}."
        )
    return [(part_path(folder, kind, part), found[part] or {}) for part in parts]
