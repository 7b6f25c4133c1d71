"""The wheel, in an environment of its own; and types of the editable install."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
USE = """
import sys
from dataclasses import replace
from pathlib import Path
import firth
from firth.models.presets import preset
from firth.models.transformer import Transformer

texts = ["low low lower lower newest newest widest " * 9] * 3
tokenizer, _ = firth.train_tokenizer(texts, kind="wordpiece", vocab_size=30, workers=1)
config = replace(preset("bert-tiny").config, vocab_size=len(tokenizer), num_layers=1)
firth.Model(Transformer(config, ["language"]), tokenizer).save("model")
run = firth.finetune("model", task="classify", train=[("low", "x"), ("newest", "y")], out="run")
print(Path(firth.__file__).parent, firth.predict("run", "low").answers[0]["label"] in "xy")
"""


def run(*command: str | Path, where: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=where, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*arguments: str | Path, python: Path, where: Path) -> None:
    shared = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "--python", python, *arguments, *shared, where=where)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, so that nothing is built in the working tree."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("firth", "pyproject.toml", "README.md", "LICENSE"):
        run("cp", "-r", ROOT / name, folder, where=folder)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A new environment that sees the installed dependencies, but not this package."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                   where=tmp_path).strip())  # fmt: skip
    # A path file adds a folder, but does not run the path files in it: not the editable install.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.nightly
def test_the_wheel_works_in_an_empty_environment(
    source: Path, python: Path, tmp_path: Path
) -> None:
    pip("wheel", "--wheel-dir", tmp_path, source, python=Path(sys.executable), where=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    data = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "firth").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {"firth/py.typed", "firth/quantization/step.c"} <= names
    assert names == data
    pip("install", wheel, python=python, where=tmp_path)
    (tmp_path / "elsewhere").mkdir()
    where, works = run(python, "-c", USE, where=tmp_path / "elsewhere").split()
    assert Path(where).is_relative_to(tmp_path / "venv")
    assert works == "True"
    shown = run(tmp_path / "venv/bin/firth", "--version", where=tmp_path)
    assert shown.startswith("firth ")


@pytest.mark.nightly
def test_the_editable_install_is_a_path_that_type_checkers_follow(
    source: Path, python: Path, tmp_path: Path
) -> None:
    pip("install", "-e", source, python=python, where=tmp_path)
    code = "import firth; reveal_type(firth.load)"
    shown = run(
        sys.executable, "-m", "mypy", "--python-executable", python, "-c", code, where=tmp_path
    )
    assert "firth.model.Model" in shown
