"""Read JSON files of bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from firth.utils.errors import InputError

MAX_BYTES = 10_000_000


def read_json(file: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file; raise `InputError` if it is too large, not readable or not JSON."""
    try:
        if file.stat().st_size > max_bytes:
            raise InputError(f"{file} is too large ({file.stat().st_size:,} bytes).")
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({str(error).splitlines()[0]}).") from error


def read_object(file: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no such file."""
    values = read_json(file, max_bytes) if file.is_file() else {}
    if not isinstance(values, dict):
        raise InputError(f"{file} is not a JSON object.")
    return values
