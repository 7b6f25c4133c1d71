"""Where `prepare` writes: a directory, or an object store by way of a directory of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from firth.data.corpus_parts import Part
from firth.data.remote_shards import copy_index
from firth.jobs.part_files import DUPLICATES, MANIFEST, SHARDS, SIGNATURES, part_path, parts_folder
from firth.jobs.prepare_output import PrepareResult
from firth.utils import object_stores
from firth.utils.errors import UsageError, storage_errors


@dataclass(frozen=True)
class OutputPlace:
    """The directory of the shards, and that of the parts beside it; `url` if they are copies."""

    out: Path
    url: str | None = None

    @classmethod
    def of(cls, out: str | Path) -> OutputPlace:
        """Return the place of `--out`; work for an object store is in FIRTH_CACHE."""
        if not object_stores.is_url(out):
            return cls(Path(os.path.realpath(out)))
        url = str(out).rstrip("/")
        key = hashlib.sha256(url.encode()).hexdigest()[:32]
        return cls(object_stores.cache_folder() / "prepare" / key / "shards", url)

    @property
    def folder(self) -> Path:
        """The directory of the parts on this machine."""
        return parts_folder(self.out)

    @property
    def finished_copy(self) -> Path:
        """Return the directory to look for finished shards in."""
        if self.url is None or not object_stores.exists(self.url):
            return self.out
        if not object_stores.exists(f"{self.url}/index.json"):
            raise UsageError(f"{self.url} exists and holds no shards; choose another --out.")
        return copy_index(self.url)

    def part_names(self) -> list[str]:
        """Return the names of the parts that are complete."""
        if self.url is not None:
            return object_stores.folders(f"{self.url}.parts")
        return sorted(path.name for path in self.folder.glob("[!.]*"))

    def pull(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Copy complete parts from the object store, if there is one, to this machine."""
        for name in self.part_names() if self.url is not None else ():
            target, url = self.folder / name, f"{self.url}.parts/{name}"
            is_complete = object_stores.exists(f"{url}/{MANIFEST}")
            if wanted(name) and is_complete and not (target / MANIFEST).is_file():
                _copy(url, target)

    def pull_part(self, part: Part) -> None:
        """Copy what one part needs: the duplicates, and what is complete of it."""
        own = {part_path(self.folder, kind, part).name for kind in (SIGNATURES, SHARDS)}
        self.pull(lambda name: name in own or name == DUPLICATES)

    def push(self, result: PrepareResult) -> PrepareResult:
        """Copy a result to the object store, if there is one, and remove it from this machine."""
        if self.url is None:
            return result
        if result.stage == "shards":
            url = self.url
            object_stores.upload(self.out, url, last="index.json")
            object_stores.remove(f"{url}.parts")
            shutil.rmtree(self.out.parent)
        else:
            url = f"{self.url}.parts/{result.path.name}"
            object_stores.upload(result.path, url, last=MANIFEST)
            if result.stage != "duplicates":
                shutil.rmtree(result.path)
        return replace(result, url=url)


def _copy(url: str, target: Path) -> None:
    """Copy a folder of an object store; it gets its name when it is complete."""
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as temporary:
            copied = Path(temporary) / target.name
            copied.mkdir()
            object_stores.download(url, copied)
            if not (target / MANIFEST).is_file():
                shutil.rmtree(target, ignore_errors=True)
            try:
                os.rename(copied, target)
            except OSError:
                if not (target / MANIFEST).is_file():  # else another process was faster
                    raise
