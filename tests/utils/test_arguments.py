"""Arguments of a wrong type, in every public function: one sentence that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.cli.verbs import as_options
from firth.utils.arguments import as_arguments, check_arguments
from firth.utils.config_fields import flag
from firth.utils.errors import FirthError, UsageError
from tests.cli.test_cli import commands

ROWS = [("A fine day.", "x"), ("A dull day.", "y")]
TUNE: dict[str, Any] = {"task": "classify", "train": ROWS, "out": "run"}
TRAIN: dict[str, Any] = {"kind": "char", "vocab_size": 30}
UNTRAINED = firth.Model(torch.nn.Linear(1, 1), None)  # type: ignore[arg-type]
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("inspect", ("model", "A text."), {"layers": "last"}, "integer"),
    ("run_study", ("labels",), {"out": "study", "seeds": "3"}, "integer"),
    ("train_tokenizer", (["A text."],), TRAIN | {"vocab_size": "500"}, "integer"),
    ("train_tokenizer", (["A text."],), TRAIN | {"lowercase": "no"}, "boolean"),
    ("pretrain", (), {"data": "shards", "out": "run", "steps": "20"}, "integer"),
    ("pretrain", (), {"data": "shards", "out": "run", "tokens": "1k"}, "integer"),
    ("pretrain", (), {"data": "shards", "out": "run", "minutes": True}, "number"),
    ("pretrain", (), {"data": "shards", "steps": 20, "out": None}, "string"),
    ("finetune", ("model",), TUNE | {"limit": "ten"}, "integer"),
    ("finetune", ("model",), TUNE | {"overrides": "steps=3"}, "dict"),
    ("finetune", ("model",), TUNE | {"columns": ["text"]}, "dict"),
    ("finetune", ("model",), TUNE | {"columns": {"text": 5}}, "dict of strings to strings"),
    ("finetune", ("model",), TUNE | {"out": None}, "Path"),
    ("finetune", ("model",), TUNE | {"callback": "bar"}, "function"),
    ("finetune", (), TUNE | {"model": None}, "Model"),
    ("evaluate", ("model",), {"data": ROWS, "limit": "two"}, "integer"),
    ("evaluate", (), {"data": ROWS, "model": ["model", 5]}, "list of strings, Paths or Models"),
    ("predict", ("model",), {"texts": "A text.", "columns": "text"}, "dict"),
    ("prepare", (["A text."],), {"tokenizer": "t", "out": "o", "valid_fraction": "x"}, "number"),
    ("prepare", (["A text."],), {"tokenizer": 5, "out": "o"}, "Tokenizer"),
    ("prompt", ("model", "A text."), {"shots": "one"}, "integer"),
    ("run_server", (), {"port": "8000"}, "integer"),
    ("embed", ("model", "A text."), {"layer": "last"}, "list of integers"),
    ("search", ("model", ["A text."]), {"query": 5}, "string"),
    ("fill", ("model", "A ___."), {"targets": [1]}, "list of strings"),
    ("generate", ("model", "Once"), {"temperature": "hot"}, "number"),
    ("score", ("model", "A text."), {"device": 5}, "device"),
    ("report", ("run",), {"out": 5}, "Path"),
    ("report", (), {"runs": [5]}, "Path"),
    ("load", (), {"source": 5}, "Path"),
    ("export", ("model",), {"out": None}, "Path"),
    ("load_tokenizer", (), {"source": 5}, "Path"),
    ("write_stories", (), {"out": 5}, "Path"),
    ("run_demo", ("out",), {"chapter": "two"}, "integer"),
    ("preset", (), {"name": 5}, "string"),
    ("show_objectives", (), {"data": 5}, "Shards"),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "accepted"), WRONG)
def test_wrong_types(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], accepted: str
) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(firth, name)(*args, **kwargs)
    wrong = str(caught.value).split("`")[1]
    assert wrong in kwargs
    assert accepted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_public_function_is_checked() -> None:
    functions = [getattr(firth, name) for name in firth.__all__]
    functions = [one for one in functions if inspect.isfunction(one)]
    taking = {one.__name__ for one in functions if inspect.signature(one).parameters}
    assert taking == {name for name, *_ in WRONG}


def test_what_numpy_and_pandas_return_is_accepted() -> None:
    @check_arguments
    def function(size: int = 0, rate: float = 0.0, words: list[str] | None = None) -> Any:
        return [type(value) for value in (size, rate, words)]

    series = pytest.importorskip("pandas").Series(["a", "b"])
    assert function(np.int64(3), np.float32(0.5), np.array(["a"])) == [int, float, list]
    assert function(torch.tensor(3), 1, series) == [int, int, list]
    assert function(2e3) == [int, float, type(None)]
    for wrong in (2.5, np.array([1, 2]), "3", False):
        with pytest.raises(UsageError, match="`size`"):
            function(wrong)
    with pytest.raises(TypeError, match=r"function\(\)"):
        function(length=3)


def test_a_model_is_saved_in_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`path`"):
        UNTRAINED.save(None)  # type: ignore[arg-type]


def test_strings_that_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one is not the working directory; a text is told by its beginning."""
    monkeypatch.chdir(tmp_path)
    model, text = firth.load("stories-encoder"), "a word " * 2000
    with pytest.raises(UsageError, match="`path` is empty"):
        model.save("")
    with pytest.raises(UsageError, match="`out` is empty"):
        firth.pretrain(preset="encoder-tiny", data="shards", out="", steps=1)
    with pytest.raises(UsageError, match=r"a word .* is too long"):
        model.save(text)
    calls: list[Callable[[], Any]] = [
        lambda: firth.evaluate(model, task="lm", data=text),
        lambda: firth.pretrain(preset="encoder-tiny", data=text, out="run", steps=1),
        lambda: firth.report(text),
    ]
    for call in calls:
        with pytest.raises(FirthError, match=r"a word .*\.\.\.") as caught:
            call()
        assert len(str(caught.value)) < 120
    assert not list(tmp_path.iterdir())
    assert len({model, firth.load("stories-encoder"), model}) == 2  # models are hashable


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: firth.run_server(queue_tokens=-1), "`queue_tokens` must be at least 0, not -1"),
        (lambda: firth.run_server({}), "`models` is empty"),
        (
            lambda: firth.run_server({"m": UNTRAINED}, dtype="float16"),
            "apply to paths and names",
        ),
        (lambda: firth.prompt("m", "a", draws=0), "`draws` must be at least 1, not 0"),
        (lambda: firth.evaluate("m", data="a.tsv", limit=-1), "`limit` .* -1"),
    ],
)
def test_limits_of_arguments(call: Callable[[], Any], complaint: str) -> None:
    """They are those of the command line."""
    with pytest.raises(UsageError, match=complaint):
        call()


COMMANDS = {"train_tokenizer": "tokenizer train", "write_stories": "stories", "run_demo": "demo"}


@pytest.mark.parametrize("name", sorted({name for name, *_ in WRONG}))
def test_errors_name_arguments_in_python_and_options_in_a_shell(name: str) -> None:
    """What becomes an argument at a function's boundary becomes the same option again."""
    known = {COMMANDS.get(name, name)} & commands().keys()
    parameters = [
        one for verb in known for one in commands()[verb].params if one.param_type_name == "option"
    ]
    shared = inspect.signature(getattr(firth, name)).parameters
    for option in parameters:
        if flag(str(option.name)) not in option.opts or option.name not in shared:
            continue
        message = f"Change {option.opts[0]} or `firth {name} {option.opts[0]}`."
        found = as_arguments(message, shared)
        assert found.startswith(f"Change `{option.name}` or `firth ")
        assert as_options(found, [str(one.name) for one in parameters]) == message
