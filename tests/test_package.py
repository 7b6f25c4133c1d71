"""The package as a whole: its public names, its rooms, its promises about itself."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import firth

ROOT = Path(__file__).parent.parent


def modules() -> list[str]:
    found = pkgutil.walk_packages(firth.__path__, "firth.")
    return [module.name for module in found if module.name != "firth.__main__"]


def test_public_names_are_sorted_and_importable_after_every_submodule() -> None:
    for name in modules():
        importlib.import_module(name)
    assert firth.__all__ == sorted(firth.__all__)
    for name in firth.__all__:
        value = getattr(firth, name)
        assert callable(value), f"firth.{name} is shadowed by a module"
        assert value.__doc__
    assert set(firth.__all__) <= set(dir(firth))


def test_the_lazy_names_are_those_of_the_type_checker() -> None:
    """`_HOMES` and the imports under TYPE_CHECKING say the same."""
    tree = ast.parse((ROOT / "firth/__init__.py").read_text())
    imported = {
        (node.module, alias.name)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {(m, name) for m, names in firth._HOMES.items() for name in names}


# Arrows point down only: a room may import from those to its right.
FLOORS = [
    ("cli", "commands"),
    ("tour", "tour_tasks", "drawing", "pretraining", "sweep", "finetuning", "study"),
    (
        "suites",
        "evaluation",
        "prediction",
        "filling",
        "generating",
        "prompting",
        "prompt_material",
        "prompt_answers",
        "asking",
    ),
    ("model", "runs"),
    ("tasks",),
    ("inference",),
    ("training", "adapt", "native"),
    ("text", "objectives", "models", "metrics"),
    ("workers", "streams", "files", "draws", "errors"),
]


def test_arrows_point_down_only() -> None:
    floor = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
    for path in (ROOT / "firth").rglob("*.py"):
        room = path.relative_to(ROOT / "firth").with_suffix("").parts[0]
        if room.startswith("__"):
            continue
        for target in re.findall(r"^\s*from firth\.(\w+)", path.read_text(), re.MULTILINE):
            assert floor[target] >= floor[room], f"{path} imports firth.{target}"


def test_files_stay_small() -> None:
    for path in (ROOT / "firth").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_text_needs_no_torch() -> None:
    """Verbs that only read text start at once, and leave the memory to the text."""
    code = "import sys, firth.cli, firth.text.preparation; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
