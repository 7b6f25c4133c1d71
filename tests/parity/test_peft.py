"""An adapter computes the same here and in PEFT: ours opened there, PEFT's opened here.

The base is a tiny network with random weights; the adapter's numbers are drawn anew, so that each
makes a difference.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from firth.adapt.apply import apply, remove
from firth.adapt.saving import load_adapter, save_adapter
from firth.formats.huggingface.directory import read_network
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.utils.errors import MismatchError
from tests.nightly import repeats_nightly
from tests.parity.reference_models import DEBERTA, MODERN, bart, bert, llama, t5
from tests.parity.reference_models import VOCABULARY as V

peft = pytest.importorskip("peft")
# DeBERTa's code is compiled in a way that torch calls outdated; PEFT sets GPT-2's matrices right.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning"),
]

LENGTH, TARGET = 9, 5
T5 = t5(num_layers=2)
GPT2 = dict(n_embd=24, n_layer=2, n_head=4, n_positions=20, bos_token_id=1, eos_token_id=1)
CLASSES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": bert(),
    "RobertaForMaskedLM": bert(),
    "GPT2LMHeadModel": dict(vocab_size=V, **GPT2),
    "LlamaForCausalLM": llama(),
    "T5ForConditionalGeneration": T5,
    "ModernBertForMaskedLM": bert(**MODERN, local_attention=6),
    # one of each other kind
    "ElectraForMaskedLM": bert(embedding_size=8),
    "AlbertForMaskedLM": bert(embedding_size=8),
    "DebertaV2ForMaskedLM": bert(**DEBERTA, position_biased_input=False, type_vocab_size=0),
    "MobileBertForMaskedLM": bert(embedding_size=8, intra_bottleneck_size=12),
    "MistralForCausalLM": llama(sliding_window=4),
    "Gemma3ForCausalLM": llama(head_dim=8, sliding_window=4),
    "MT5ForConditionalGeneration": dict(**T5, num_decoder_layers=3),
    "BartForConditionalGeneration": bart(scale_embedding=True),
}
ALL = ["BertForMaskedLM", "RobertaForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"]
ALL += ["T5ForConditionalGeneration", "ModernBertForMaskedLM"]
OTHERS = [name for name in CLASSES if name not in ALL]
SPECS = "lora:3 lora:rank=3,targets=all,rslora lora:rank=3,targets=all,dora ia3 prompt:3".split()
PREFIXED = ["BertForMaskedLM", "RobertaForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"]
PREFIXED += ["ElectraForMaskedLM", "MistralForCausalLM", "Gemma3ForCausalLM"]
DECODED = [f"{name}ForConditionalGeneration" for name in ("T5", "MT5", "Bart")]


def build(name: str, folder: Path, **values: Any) -> Any:
    """Build a network of theirs with random weights and save it."""
    made = getattr(transformers, name)
    reference = made(made.config_class(**values)).eval()
    stir(reference.parameters(), 0)
    reference.save_pretrained(folder)
    return reference


@cache
def base(name: str) -> tuple[Any, Path]:
    """A network with random weights, made once, and where it is saved."""
    folder = Path(tempfile.mkdtemp())
    return build(name, folder, **CLASSES[name]), folder


def stir(parameters: Any, seed: int) -> None:
    """Draw numbers anew: around what they are if they are one, as norms and factors are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * drawn + (1.0 if parameter.numel() == len(parameter) else 0.0))


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randint(3, V, (2, LENGTH), generator=generator),
        torch.randint(3, V, (2, TARGET), generator=generator),
    )


@torch.no_grad()
def ours_says(network: Transformer) -> Tensor:
    tokens, targets = inputs()
    lengths = [LENGTH] * 2
    if network.config.architecture == "encoder-decoder":
        memory = network.encode(tokens.flatten(), Mask(lengths))
        causal = Mask.causal([TARGET] * 2)
        behind = dict(memory=memory, memory_mask=Mask(lengths))
        return network.logits(network(targets.flatten(), causal, **behind)).unflatten(0, (2, -1))
    mask = Mask(lengths) if network.config.has_encoder else Mask.causal(lengths)
    return network.logits(network(tokens.flatten(), mask)).unflatten(0, (2, -1))


@torch.no_grad()
def theirs_says(reference: Any) -> Tensor:
    tokens, targets = inputs()
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if reference.config.is_encoder_decoder:
        given["decoder_input_ids"] = targets
    length = TARGET if reference.config.is_encoder_decoder else LENGTH
    return reference(**given).logits[:, -length:]  # without what became of a prompt


def agree(ours: Tensor, theirs: Tensor, plain: Tensor) -> None:
    assert (theirs - plain).abs().max() > 1e-2, "the adapter makes no difference"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def cases() -> Iterator[tuple[str, str]]:
    yield from ((name, spec) for name in ALL for spec in SPECS)
    yield from ((name, spec) for name in OTHERS for spec in (SPECS[2], "ia3", "prompt:3"))
    yield from ((name, "prefix:3") for name in PREFIXED)
    yield ("GPT2LMHeadModel", "prefix:length=3,projection=7")
    yield from ((name, "prefix:length=3,where=decoder") for name in DECODED)


@pytest.mark.parametrize(("name", "spec"), repeats_nightly(cases()))
def test_ours_opens_in_peft(name: str, spec: str, tmp_path: Path) -> None:
    plain, folder = base(name)
    network = read_network(folder).eval()
    adapted = apply(network, spec)
    stir(adapted.parameters.values(), 1)
    saved = save_adapter(adapted, tmp_path, base=str(folder))
    assert (saved.layout, saved.why) == ("peft", "")
    reference = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path).eval()
    agree(ours_says(network), theirs_says(reference), theirs_says(plain))


TARGETS = {
    "BertForMaskedLM": ["query", "value", "attention.output.dense", "intermediate.dense"],
    "RobertaForMaskedLM": r".*layer\.1\..*(key|intermediate\.dense)",
    "GPT2LMHeadModel": ["c_attn", "c_fc", "c_proj"],
    "LlamaForCausalLM": "all-linear",
    "T5ForConditionalGeneration": "all-linear",
    "ModernBertForMaskedLM": ["Wqkv", "Wi", "Wo"],
}
FACTORS = {  # what comes out, what goes in
    "BertForMaskedLM": (["key", "value", "output.dense"], ["output.dense"]),
    "RobertaForMaskedLM": (["key", "value", "output.dense"], ["output.dense"]),
    "GPT2LMHeadModel": (["c_attn", "mlp.c_proj"], ["mlp.c_proj"]),
    "LlamaForCausalLM": (["k_proj", "v_proj", "down_proj"], ["down_proj"]),
    "T5ForConditionalGeneration": (["k", "v", "wo"], ["wo"]),
    "ModernBertForMaskedLM": (["Wqkv", "mlp.Wo"], ["mlp.Wo"]),
}


def configuration(name: str, kind: str) -> Any:
    both = name in DECODED
    task = "SEQ_2_SEQ_LM" if both else "FEATURE_EXTRACTION" if "Masked" in name else "CAUSAL_LM"
    low = partial(peft.LoraConfig, r=3, lora_alpha=5, target_modules=TARGETS[name])
    targets, inputs = FACTORS[name]
    prefix = partial(peft.PrefixTuningConfig, num_virtual_tokens=3)
    kinds = {
        "lora": low,
        "rslora": partial(low, use_rslora=True),
        "dora": partial(low, use_dora=True),
        "ia3": partial(peft.IA3Config, target_modules=targets, feedforward_modules=inputs),
        "prompt": partial(peft.PromptTuningConfig, num_virtual_tokens=3),
        "prefix": prefix,
        "projected": partial(prefix, prefix_projection=True, encoder_hidden_size=7),
    }
    return kinds[kind](task_type=task)


KINDS = ["lora", "rslora", "dora", "ia3", "prompt"]
MADE_THERE = [(name, kind) for name in ALL for kind in KINDS]
MADE_THERE += [(name, kind) for name in ALL[:5] for kind in ("prefix", "projected")]


@pytest.mark.parametrize(("name", "kind"), repeats_nightly(MADE_THERE))
def test_pefts_opens_here(name: str, kind: str, tmp_path: Path) -> None:
    plain, folder = base(name)
    reference = peft.get_peft_model(copy.deepcopy(plain), configuration(name, kind)).eval()
    learned = [parameter for parameter in reference.parameters() if parameter.requires_grad]
    stir(learned, 2)
    reference.save_pretrained(tmp_path)
    network = read_network(folder).eval()
    load_adapter(network, tmp_path)
    agree(ours_says(network), theirs_says(reference), theirs_says(plain))


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_of_an_even_decoder_share_pefts_prefix(layers: int, tmp_path: Path) -> None:
    """Which pair of the file a layer reads, in a decoder of even and of odd depth."""
    folder = tmp_path / "base"
    reference = build("T5ForConditionalGeneration", folder, **T5, num_decoder_layers=layers)
    tuning = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
    tuning.num_layers = layers
    plain, tuned = theirs_says(reference), peft.get_peft_model(reference, tuning).eval()
    stir(tuned.prompt_encoder.parameters(), 2)
    tuned.save_pretrained(tmp_path / "adapter")
    network = read_network(folder).eval()
    load_adapter(network, tmp_path / "adapter")
    agree(ours_says(network), theirs_says(tuned), plain)


DISTIL = dict(vocab_size=V, dim=24, n_layers=2, n_heads=4, hidden_dim=40)
LABELLED = {
    "BertForSequenceClassification": (bert(), ["pooler", "classify"]),
    "BertForTokenClassification": (bert(), ["tag"]),
    "BertForQuestionAnswering": (bert(), ["span"]),
    "RobertaForSequenceClassification": (bert(), ["classify"]),
    "DistilBertForSequenceClassification": (DISTIL, ["classify"]),
    "ModernBertForSequenceClassification": (bert(**MODERN), ["classify"]),
    "GPT2ForSequenceClassification": (dict(vocab_size=V, **GPT2, pad_token_id=0), ["classify"]),
    "LlamaForSequenceClassification": (llama(), ["classify"]),
}


@torch.no_grad()
def labels_ours(network: Transformer) -> Tensor:
    tokens, lengths = inputs()[0].flatten(), [LENGTH] * 2
    mask = Mask(lengths) if network.config.has_encoder else Mask.causal(lengths)
    scores = network.label_logits(network(tokens, mask), mask.starts)
    return scores if len(scores) == 2 else scores.unflatten(0, (2, -1))


@torch.no_grad()
def labels_theirs(reference: Any) -> Tensor:
    tokens = inputs()[0]
    said = reference(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    if "start_logits" in said:
        return torch.stack([said.start_logits, said.end_logits], dim=-1)[:, -LENGTH:]
    return said.logits if said.logits.dim() == 2 else said.logits[:, -LENGTH:]


HEADED = [(name, spec) for name in LABELLED for spec in ("lora:3", "ia3")]
HEADED += [(name, "prefix:3") for name in LABELLED if not name.startswith(("Distil", "Modern"))]
HEADED += [(name, "prompt:3") for name in LABELLED if name.startswith(("GPT2", "Llama"))]
HEADED += [(f"BertFor{task}", "prompt:3") for task in ("TokenClassification", "QuestionAnswering")]


@pytest.mark.parametrize(("name", "spec"), repeats_nightly(HEADED))
def test_heads_travel_with_the_adapter(name: str, spec: str, tmp_path: Path) -> None:
    """Written here, opened by PEFT on a base with another head; saved by PEFT, opened here."""
    values, heads = LABELLED[name]
    labels = 3 if "Question" not in name else 2
    reference = build(name, tmp_path / "base", **values, num_labels=labels)
    network = read_network(tmp_path / "base").eval()
    plain = labels_ours(network)
    adapted = apply(network, spec, heads=heads)
    stir(adapted.parameters.values(), 1)
    saved = save_adapter(adapted, tmp_path / "ours")
    assert (saved.layout, saved.why) == ("peft", "")
    tuned = peft.PeftModel.from_pretrained(reference, tmp_path / "ours").eval()
    agree(labels_ours(network), labels_theirs(tuned), plain)
    tuned.save_pretrained(tmp_path / "theirs")
    again = read_network(tmp_path / "base").eval()
    load_adapter(again, tmp_path / "theirs")
    agree(labels_ours(again), labels_theirs(tuned), plain)


BARE = {  # a base without labels, the class that PEFT trains, and what it is for
    "BertModel": ("BertForSequenceClassification", "SEQ_CLS", ["query", "value"]),
    "BertForMaskedLM": ("BertForTokenClassification", "TOKEN_CLS", ["query", "value"]),
    "BertForPreTraining": ("BertForQuestionAnswering", "QUESTION_ANS", ["query", "value"]),
    "RobertaModel": ("RobertaForSequenceClassification", "SEQ_CLS", ["query", "value"]),
    "GPT2LMHeadModel": ("GPT2ForSequenceClassification", "SEQ_CLS", ["c_attn"]),
    "LlamaForCausalLM": ("LlamaForSequenceClassification", "SEQ_CLS", ["q_proj", "v_proj"]),
    "ModernBertForMaskedLM": ("ModernBertForSequenceClassification", "SEQ_CLS", ["Wqkv"]),
}
SHAPES = {**CLASSES, "GPT2LMHeadModel": dict(vocab_size=V, **GPT2, pad_token_id=0)}
SHAPES |= {"BertModel": bert(), "BertForPreTraining": bert(), "RobertaModel": bert()}


def trained_by_peft(name: str, path: Path, **options: Any) -> tuple[Transformer, Any]:
    """A base as we open it, and PEFT's adapter with labels for it."""
    cls, task, targets = BARE[name]
    build(name, path / "base", **SHAPES[name])
    count = {"num_labels": 3} if task != "QUESTION_ANS" else {}
    labelled = getattr(transformers, cls).from_pretrained(path / "base", **count)
    config = peft.LoraConfig(r=3, target_modules=targets, **{"task_type": task, **options})
    tuned = peft.get_peft_model(labelled, config).eval()
    stir([parameter for parameter in tuned.parameters() if parameter.requires_grad], 2)
    tuned.save_pretrained(path / "adapter")
    return read_network(path / "base").eval(), tuned


@pytest.mark.parametrize("name", [name for name in BARE if not name.startswith("Modern")])
def test_pefts_labels_on_a_base_that_has_none(name: str, tmp_path: Path) -> None:
    network, tuned = trained_by_peft(name, tmp_path)
    before = list(network.heads)
    load_adapter(network, tmp_path / "adapter")
    torch.testing.assert_close(labels_ours(network), labels_theirs(tuned), rtol=0, atol=1e-5)
    names = () if "Pre" in name else ("LABEL_0", "LABEL_1", "LABEL_2")
    assert (network.config.labels, network.config.label_type) == (names, "one")
    remove(network, "default")
    assert (set(network.heads), network.config.label_head) == (set(before), "")


def test_pefts_labels_by_the_class_alone(tmp_path: Path) -> None:
    """Without a task, PEFT writes down which class it was; what is to be saved must be named."""
    network, tuned = trained_by_peft(
        "BertModel", tmp_path, task_type=None, modules_to_save=["classifier", "pooler"]
    )
    load_adapter(network, tmp_path / "adapter")
    torch.testing.assert_close(labels_ours(network), labels_theirs(tuned), rtol=0, atol=1e-5)


def test_pefts_head_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    network, _ = trained_by_peft("ModernBertForMaskedLM", tmp_path)
    with pytest.raises(MismatchError, match=r"head\.dense\.weight.*modules_to_save"):
        load_adapter(network, tmp_path / "adapter")


def test_pefts_prompt_for_a_classifier_is_refused(tmp_path: Path) -> None:
    reference = build("BertForSequenceClassification", tmp_path / "base", **bert())
    tuning = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    peft.get_peft_model(reference, tuning).save_pretrained(tmp_path / "adapter")
    with pytest.raises(MismatchError, match="pools the virtual tokens"):
        load_adapter(read_network(tmp_path / "base"), tmp_path / "adapter")


def test_a_decoder_deeper_than_pefts_prefix_is_refused(tmp_path: Path) -> None:
    """PEFT counts the layers of the encoder."""
    config = dict(T5, num_decoder_layers=3)
    reference = build("T5ForConditionalGeneration", tmp_path / "base", **config)
    tuning = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
    peft.get_peft_model(reference, tuning).save_pretrained(tmp_path / "adapter")
    with pytest.raises(MismatchError, match=r"prefix has 2 layers.*decoder has 3"):
        load_adapter(read_network(tmp_path / "base"), tmp_path / "adapter")
