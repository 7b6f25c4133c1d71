"""Texts are as likely here as `transformers` finds them: its own logits, added up by hand.

The references are tiny networks with random weights, asked one row at a time and in their own
float arithmetic; ours get everything at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from firth import train_tokenizer
from firth.formats.huggingface.directory import read_network
from firth.formats.tokenizers.loading import load_tokenizer
from firth.inference.scoring.log_likelihood import log_likelihoods, score_continuations
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.jobs.evaluation import evaluate
from tests.conftest import SAMPLE
from tests.parity.reference_models import VOCABULARY, randomize
from tests.parity.test_families import ROWS, Row

WRITING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
WRITERS = [row for row in ROWS if row.name.endswith(WRITING) and "XLMWith" not in row.name]
TEXTS = [
    "The dog barked at the river all night.",
    "the dog bark at the river all night",
    "Once upon a time a fox met another fox; neither of them said anything.",
    "No.",
]


def opened(row: Row, folder: Path) -> tuple[Any, Any]:
    """A network of theirs, and the same as ours."""
    reference = row.reference()
    if reference.config.is_encoder_decoder:
        for config in (reference.config, reference.generation_config):
            config.decoder_start_token_id = 3
    reference.save_pretrained(folder)
    return reference, read_network(folder).eval()


def drawn(seed: int, *lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(4, VOCABULARY, length).tolist() for length in lengths]


@pytest.mark.parametrize("row", WRITERS, ids=lambda row: row.id)
def test_continuations(row: Row, tmp_path: Path) -> None:
    reference, network = opened(row, tmp_path)
    contexts, targets = drawn(0, 7, 3, 11, 7), drawn(1, 4, 1, 6, 2)
    pairs = list(zip(contexts, targets, strict=True))
    pairs += [(contexts[0], [5]), (contexts[0], [6]), (contexts[0], targets[0][:2])]
    found = score_continuations(network, pairs)
    for (context, target), score in zip(pairs, found, strict=True):
        with torch.no_grad():
            if reference.config.is_encoder_decoder:
                inputs = torch.tensor([[3, *target[:-1]]])
                logits = reference(torch.tensor([context]), decoder_input_ids=inputs).logits[0]
            else:
                logits = reference(torch.tensor([context + target])).logits[0]
                logits = logits[len(context) - 1 : -1]
        wanted = logits.log_softmax(-1)[range(len(target)), target]
        np.testing.assert_allclose(score.log_probs, wanted.numpy(), atol=2e-5)
        assert score.is_greedy == (logits.argmax(-1).tolist() == target)
        assert score.tokens == len(target)


# ---- whole texts, with tokenizers that both sides read -------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny BERT, RoBERTa and GPT-2 of theirs, each with a tokenizer trained on a little text."""
    text = tmp_path_factory.mktemp("text") / "sample.txt"
    text.write_text(SAMPLE + "\n".join(TEXTS), encoding="utf-8")
    kinds = {
        "bert": ("wordpiece", "bert", "BertForMaskedLM"),
        "roberta": ("bpe", "roberta", "RobertaForMaskedLM"),
        "gpt2": ("bpe", "gpt2", "GPT2LMHeadModel"),
    }
    found = {}
    for name, (kind, specials, model) in kinds.items():
        folder = found[name] = tmp_path_factory.mktemp(name)
        tokenizer, _ = train_tokenizer([text], kind=kind, specials=specials, vocab_size=300)
        tokenizer.save(folder)
        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
        sizes |= dict(max_position_embeddings=80)
        if name == "gpt2":
            sizes |= dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.special_ids["eos"])
        else:
            sizes |= dict(intermediate_size=48)
        config = getattr(transformers, model).config_class(vocab_size=len(tokenizer), **sizes)
        randomize(getattr(transformers, model)(config), std=0.25).save_pretrained(folder)
    return found


def theirs(folder: Path, kind: str) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return getattr(transformers, kind).from_pretrained(folder).eval(), tokenizer


@torch.no_grad()
def test_likelihoods(folders: dict[str, Path]) -> None:
    reference, tokenizer = theirs(folders["gpt2"], "AutoModelForCausalLM")
    network = read_network(folders["gpt2"]).eval()
    found = log_likelihoods(network, load_tokenizer(folders["gpt2"]), TEXTS)
    for text, score in zip(TEXTS, found, strict=True):
        ids = [reference.config.bos_token_id, *tokenizer(text)["input_ids"]]
        logs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [float(logs[i, id]) for i, id in enumerate(ids[1:])]
        np.testing.assert_allclose(score.log_probs, wanted, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("by_word", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pseudo_likelihoods(family: str, by_word: bool, folders: dict[str, Path]) -> None:
    """Salazar et al. 2020, one hidden token and one call at a time; Kauf and Ivanova 2023."""
    reference, tokenizer = theirs(folders[family], "AutoModelForMaskedLM")
    network = read_network(folders[family]).eval()
    ours = load_tokenizer(folders[family])
    found = list(pseudo_log_likelihoods(network, ours, TEXTS, by_word=by_word))
    several = 0
    for text, score in zip(TEXTS, found, strict=True):
        made = tokenizer(text, return_special_tokens_mask=True)
        wanted, words = [], made.word_ids()
        for i, id in enumerate(made["input_ids"]):
            if made["special_tokens_mask"][i]:
                continue
            hidden = torch.tensor([made["input_ids"]])
            hidden[0, i] = tokenizer.mask_token_id
            for j in range(i + 1, len(words)):
                if by_word and words[j] == words[i]:
                    hidden[0, j] = tokenizer.mask_token_id
                    several += 1
            wanted.append(float(reference(hidden).logits[0, i].log_softmax(-1)[id]))
        np.testing.assert_allclose(score.log_probs, wanted, atol=2e-5)
    assert several or not by_word


@torch.no_grad()
def test_a_window_slides_as_in_their_guide(folders: dict[str, Path], tmp_path: Path) -> None:
    """The loop of transformers' page on the perplexity of models with a fixed length."""
    text = " ".join(TEXTS * 6)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    reference, tokenizer = theirs(folders["gpt2"], "AutoModelForCausalLM")
    ids = [reference.config.bos_token_id, *tokenizer(text)["input_ids"]]
    longest, stride, before, total, count = 20, 7, 0, 0.0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + longest, len(ids))
        asked = end - before
        inputs = torch.tensor([ids[begin:end]])
        labels = inputs.clone()
        labels[:, :-asked] = -100
        loss = reference(inputs, labels=labels).loss
        scored = asked - (1 if begin == 0 else 0)  # the first token of all has nothing before it
        total, count, before = total + float(loss) * scored, count + scored, end
        if end == len(ids):
            break
    found = evaluate(
        folders["gpt2"], task="lm", data=tmp_path / "text.txt", context=longest, stride=stride
    )
    assert found.details["counts"]["tokens"] == count == len(ids) - 1
    assert found.details["nats"] == pytest.approx(total, rel=1e-5)
    value = found.metrics["token_perplexity"].value
    assert value == pytest.approx(np.exp(total / count), rel=1e-5)


@torch.no_grad()
def test_last_words(folders: dict[str, Path], tmp_path: Path) -> None:
    """Greedy from their logits: a word is right if all of its tokens are."""
    reference, tokenizer = theirs(folders["gpt2"], "AutoModelForCausalLM")
    texts = [text.rstrip(".") for text in TEXTS[:3]]
    (tmp_path / "lambada.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    right, losses = [], []
    for text in texts:
        context, _, word = text.rpartition(" ")
        before = tokenizer(context)["input_ids"]  # GPT-2's adds no BOS
        after = tokenizer(" " + word)["input_ids"]
        logits = reference(torch.tensor([before + after])).logits[0][len(before) - 1 : -1]
        right.append(logits.argmax(-1).tolist() == after)
        losses.append(-float(logits.log_softmax(-1)[range(len(after)), after].sum()))
    found = evaluate(folders["gpt2"], task="last-word", data=tmp_path / "lambada.txt")
    assert found.metrics["accuracy"].value == np.mean(right)
    wanted = float(np.exp(np.mean(losses)))
    assert found.metrics["perplexity"].value == pytest.approx(wanted, rel=1e-4)
