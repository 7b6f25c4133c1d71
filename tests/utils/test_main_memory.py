"""Free main memory: the least of the machine's and that of the control groups of the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from firth.utils.main_memory import free_memory

MEMINFO = "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 5000 kB\nSwapFree: 3000 kB\n"
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def limit(folder: Path, names: tuple[str, str, str], most: object, used: int, cached: int) -> None:
    """Write the files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (most, used), strict=False):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cached}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def test_without_control_groups_it_is_the_machines(machine: Path, tmp_path: Path) -> None:
    assert free_memory(swap=False, root=machine) == 5000 * 1024
    assert free_memory(swap=True, root=machine) == 8000 * 1024
    assert free_memory(swap=True, root=tmp_path / "macos") is None
    assert free_memory(swap=False) or not Path("/proc/meminfo").exists()


def test_a_container_or_a_job_is_limited_by_its_control_groups(machine: Path) -> None:
    groups, own = machine / "sys/fs/cgroup", machine / "proc/self/cgroup"
    own.write_text("0::/slurm/job\n")
    limit(groups / "slurm/job", V2, "max", 900_000, 0)
    assert free_memory(swap=False, root=machine) == 5000 * 1024
    limit(groups / "slurm", V2, 1_000_000, 900_000, 30_000)  # of the group above
    assert free_memory(swap=True, root=machine) == 130_000
    limit(groups / "slurm/job", V2, 2_000, 2_000, 0)
    assert free_memory(swap=True, root=machine) == 0
    own.write_text("7:cpu:/other\n4:cpuset,memory:/docker/1234\n")  # the first version
    assert free_memory(swap=False, root=machine) == 5000 * 1024
    limit(groups / "memory", V1, 2_000_000, 500_000, 7)  # in a container, the group is the root
    assert free_memory(swap=False, root=machine) == 1_500_007
