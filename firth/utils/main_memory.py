"""Free main memory: of the machine, and of the control groups that limit a container or a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# For each version of control groups, its files of the limit, of the memory in use, and the field
# of `memory.stat` with the bytes of cached files that can be dropped.
GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def free_memory(*, swap: bool, root: Path = Path("/")) -> int | None:
    """Return the number of bytes this process can still allocate; None where it is unknown.

    It is known on Linux. `root` is the directory that has `proc` and `sys`, for tests.
    """
    fields = ("MemAvailable", "SwapFree") if swap else ("MemAvailable",)
    with suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        found = re.findall(rf"^(?:{'|'.join(fields)}):\s+(\d+) kB", text, re.MULTILINE)
        if found:
            return max(0, min(1024 * sum(map(int, found)), *_free_in_groups(root), 1 << 62))
    return None


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group that limits the memory of this process."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and "memory" not in controllers.split(","):
                continue
            version = 2 if number == "0" else 1
            base = root / "sys/fs/cgroup" / ("" if version == 2 else "memory")
            group = base / path.strip("/")
            for folder in (group, *group.parents):  # in a container, only `base` may be there
                free = _free_in_group(folder, version) if folder.is_relative_to(base) else None
                if free is not None:
                    yield free


def _free_in_group(folder: Path, version: int) -> int | None:
    """Return the free bytes of a control group; None if it has no limit."""
    limit, used, cached = GROUP_FILES[version]
    with suppress(OSError, ValueError):  # a limit of "max" is none
        taken = int((folder / used).read_text())
        stat = re.search(rf"^{cached} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
        return int((folder / limit).read_text()) - taken + int(stat[1] if stat else 0)
    return None
