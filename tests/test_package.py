"""The package as a whole: public names, layers of imports, file sizes."""

from __future__ import annotations

import ast
import graphlib
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import get_type_hints

import firth
from firth.inference.generation.generation_config import GenerationConfig, GenerationOptions

ROOT = Path(__file__).parent.parent


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a file once for all tests."""
    return ast.parse(path.read_text())


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


# Imports point down only: a package may import from those below it.
LAYERS = [
    ("cli", "serve"),
    ("jobs", "study", "demo"),
    ("inspection",),
    ("model",),
    ("tasks",),
    ("inference",),
    ("training", "adapt", "quantization"),
    ("formats",),
    ("models", "objectives", "metrics"),
    ("tokenizers",),
    ("data",),
    ("embedded",),
    ("utils",),
]


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module of the package imports, also inside functions."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "firth").rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                targets |= {one if one in paths else node.module for one in whole}
            elif isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
        # The package itself holds the version, and imports nothing until a name is used.
        found[name] = (targets & set(paths)) - {"firth"}
    del found["firth"]
    return found


def test_imports_point_down_only() -> None:
    layer = {package: i for i, packages in enumerate(LAYERS) for package in packages}
    for module, targets in imports().items():
        if module == "firth.__main__":
            continue
        for target in targets:
            own, other = module.split(".")[1], target.split(".")[1]
            assert layer[own] <= layer[other], f"{module} imports {target}, which is above it"


def test_no_import_cycles() -> None:
    """Neither between modules nor between packages."""
    modules = imports()
    packages: dict[str, set[str]] = {}
    for module, targets in modules.items():
        own = module.split(".")[1]
        packages.setdefault(own, set()).update({t.split(".")[1] for t in targets} - {own})
    for graph in (modules, packages):
        assert list(graphlib.TopologicalSorter(graph).static_order())  # else a CycleError


def test_generation_options_are_those_of_the_config() -> None:
    """An editor completes the keyword arguments of `Model.generate`."""
    fields = {**get_type_hints(GenerationConfig), "stop": Sequence[str] | str}
    options = get_type_hints(GenerationOptions)
    assert options == {name: kind | None for name, kind in fields.items()}


def test_what_the_benchmarks_import_exists() -> None:
    """No test runs them: they need other packages and much time."""
    for path in (ROOT / "bench").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("firth"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{path.name}: {node.module}.{alias.name}"


def test_few_modules_beside_the_packages() -> None:
    loose = {path.name for path in (ROOT / "firth").glob("*.py")}
    assert len(loose - {"__init__.py", "__main__.py"}) <= 5


def test_public_classes_have_names_of_their_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in (ROOT / "firth").rglob("*.py"):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_files_stay_small() -> None:
    for path in (ROOT / "firth").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_text_needs_no_torch() -> None:
    """Verbs that only read text do not import torch."""
    modules = "firth.cli.app, firth.cli.views.data, firth.jobs.preparation"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
