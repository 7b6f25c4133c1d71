"""Messages: every option that one names exists, in the verbs that can print it."""

from __future__ import annotations

import ast
import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import firth
from firth.training.run_directory import check_run_directory
from firth.utils.errors import StorageError, UsageError, storage_errors
from firth.utils.files import write_json
from tests.cli.test_cli import commands

ROOT = Path(firth.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)")
FOREIGN = {"quantization/c_library.py", "formats/gguf_file.py"}  # commands of other programs
TORCHRUN = {"--max-restarts", "--nproc-per-node"}  # its options
READING = "prepare,tokenizer train,finetune,evaluate,predict,prompt,generate,fill,embed,search"
LOADING = "evaluate,predict,prompt,generate,fill,embed,search"
TRAINING = "pretrain,finetune"
VERBS = {  # which verbs can print the messages of a module; the longest prefix counts
    "data/": READING,
    "data/mixture": "pretrain",
    "data/sampler": "objectives,pretrain",
    "data/shards": "objectives,pretrain",
    "data/corpus_parts": "prepare",
    "data/stories": "stories",
    "formats/": LOADING,
    "inference/": LOADING,
    "inference/embedding": "embed,search",
    "inference/embedding/embed_file": "embed",
    "inference/embedding/semantic_search": "search",
    "inference/embedding/vector_files": "embed",
    "inference/generation": "generate",
    "inference/infilling": "fill",
    "inference/prompting": "prompt",
    "jobs/evaluation": "evaluate",
    "jobs/finetuning": "finetune",
    "jobs/preparation": "prepare",
    "jobs/pretraining": "pretrain",
    "jobs/prompt": "prompt",
    "jobs/suites": "evaluate",
    "model.py": "evaluate,generate",  # the verbs with --weights
    "objectives/": "objectives,pretrain",
    "quantization/": "evaluate,generate",
    "tasks/": "finetune,evaluate",
    "tasks/augmentation": "finetune",
    "tasks/dataset": "finetune",
    "tasks/perplexity": "evaluate",
    "tasks/readers": "finetune,evaluate,predict",
    "tasks/readers/conll": "predict",  # training needs no choice between CoNLL and text
    "tasks/scoring_task": "evaluate",
    "tasks/task.py": "predict",
    "tasks/task_trainer": "finetune",
    "tokenizers/": "tokenizer train",
    "training/": TRAINING,
    "training/pretrain_config": "pretrain",
    "utils/devices": f"{TRAINING},embed,search",
    "utils/workers": "prepare,tokenizer train",
}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings, with their line numbers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            texts = [part for part in node.values if isinstance(part, ast.Constant)]
            parts |= set(map(id, texts))
            yield node.lineno, "…".join(str(text.value) for text in texts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.lineno, node.value


def verbs_of(module: str, known: Iterable[str]) -> list[str]:
    """The verbs that can print the messages of a module; none: any."""
    if module.startswith("cli/"):
        return [verb for verb in known if module == f"cli/{verb}.py"]
    found = max((prefix for prefix in VERBS if module.startswith(prefix)), key=len, default="")
    return VERBS[found].split(",") if found else []


def test_every_option_of_a_message_exists() -> None:
    options = {
        verb: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        for verb, command in commands().items()
    }
    anywhere = set().union(*options.values()) | {"--version", "--help"}
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        for line, text in messages(path) if module not in FOREIGN else ():
            named = [verb for verb in options if f"firth {verb}" in text or f"`{verb} " in text]
            for option in set(OPTION.findall(text)) - TORCHRUN:
                known = option in anywhere
                in_verbs = all(option in options[verb] for verb in verbs_of(module, options))
                if not known or not (in_verbs or any(option in options[verb] for verb in named)):
                    wrong.append(f"{module} line {line}: {option}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOENT])
def test_free_space_is_advised_for_a_full_disk_only(code: int) -> None:
    with pytest.raises(StorageError, match="space"), storage_errors(Path("out")):
        raise OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(StorageError) as raised,
        storage_errors(Path("out"), "Finished parts are in out."),
    ):
        raise OSError(code, "No")
    assert "out cannot be written (No)" in str(raised.value)
    assert "space" not in str(raised.value)
    assert "Finished" not in str(raised.value)


@pytest.mark.parametrize("finished", [False, True])
def test_resume_is_offered_for_unfinished_runs_only(finished: bool, tmp_path: Path) -> None:
    values = {"kind": "pretraining", "finished": finished, "job": {"preset": "bert-tiny"}}
    values["versions"] = {"firth": "0"}
    write_json(tmp_path / "run.json", values)
    with pytest.raises(UsageError) as raised:
        check_run_directory(tmp_path, values, resume=False)
    assert str(tmp_path) in str(raised.value)
    assert ("--resume" in str(raised.value)) != finished
