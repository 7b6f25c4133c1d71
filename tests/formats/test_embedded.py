"""Names of embedded models: accepted wherever MODEL is, offline, and never written to."""

from __future__ import annotations

from pathlib import Path

import pytest

import firth
from firth import embedded
from firth.embedded import EMBEDDED_MODELS, local_path
from firth.formats.tokenizers.loading import load_tokenizer
from firth.jobs.parent_models import untrained_model
from tests.conftest import in_process
from tests.formats.conftest import refusal
from tests.formats.local_hub import Hub

NAME = "stories-encoder"
TEXT = "the dog is calm .\n\nthe sea was a sun .\n"


def save(folder: Path, preset: str) -> None:
    tokenizer, _ = firth.train_tokenizer([TEXT], kind="wordpiece", vocab_size=33, workers=1)
    untrained_model(preset, tokenizer, scratch=True, seed=0).save(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one of the embedded models, and an empty working directory."""
    save(tmp_path / "package" / NAME, "bert-tiny")
    monkeypatch.setattr(embedded, "HOME", tmp_path / "package")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "package"


def test_a_name_is_accepted_wherever_model_is_and_nothing_is_written_there(
    home: Path, hub: Hub
) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    model = firth.load(NAME)
    assert (model.source, model.path) == (NAME, home / NAME)
    assert len(load_tokenizer(NAME)) == model.config.vocab_size
    Path("text.txt").write_text(TEXT)
    Path("rows.tsv").write_text("text\tlabel\n" + "the dog\tgood\na sea\tbad\n" * 4)
    commands = f"""fill {NAME} dog[MASK]
    embed {NAME} text.txt --out vectors.npy
    search {NAME} text.txt dog
    export {NAME} --to hf exported
    prepare text.txt --tokenizer {NAME} --out shards --workers 1
    pretrain --from {NAME} --data shards --out more --steps 1 --batch-tokens 64 --max-length 32
    finetune {NAME} --task classify --train rows.tsv --out lora --epochs 1 --strategy lora
    predict lora dog""".splitlines()
    for command in commands:
        done = in_process(*command.split())
        assert done.returncode == 0, (command, done.stderr)
    assert f'"name": "{NAME}"' in Path("lora/firth.json").read_text()
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    assert hub.requests == []


def test_a_path_takes_precedence_and_a_revision_is_refused(home: Path) -> None:
    with pytest.raises(firth.UsageError, match="revision"):
        firth.load(NAME, revision="main")
    save(Path(NAME), "decoder-tiny")
    assert firth.load(NAME).config.architecture == "decoder"
    assert local_path(Path("stories-decoder")) is None  # a `Path` is not a name


def test_missing_files_and_unknown_names(home: Path) -> None:
    missing = refusal("stories-decoder")
    assert str(home / "stories-decoder") in missing
    assert "make embedded" in missing
    for name in EMBEDDED_MODELS:
        assert name in refusal("stories-nothing", offline=True)
    with pytest.raises(firth.UsageError, match="--from"):
        firth.preset(NAME)


def test_the_decoder_reads_as_many_tokens_as_in_training() -> None:
    """Longer texts are evaluated in windows: beyond 256 tokens its predictions are bad."""
    model = firth.load("stories-decoder")
    assert model.path is not None
    card = (model.path / "README.md").read_text(encoding="utf-8")
    assert f"--max-length {model.config.max_positions} " in card


def test_presets_lists_them() -> None:
    shown = in_process("presets")
    assert all(name in shown.stdout for name in EMBEDDED_MODELS)
    assert in_process("presets", "--json").json["embedded_models"] == EMBEDDED_MODELS
