"""Files of examples, and how tests read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.tasks.readers.columns import TaskFile


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file: text as it is, or rows as JSONL."""

    def write(name: str, content: str | bytes | list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def read(reader: Callable[..., Any], path: str | Path, **options: Any) -> list[Any]:
    return list(reader(TaskFile(path, **options)))
