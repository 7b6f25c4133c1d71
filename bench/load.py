"""Opening a model: `firth.load` against `from_pretrained` of transformers.

transformers writes two models of random single-precision weights, one of the shape of BERT-base and
one of GPT-2 (124M). Both sides open each in turns, in one process, from a warm file cache. Firth
maps the file and copies only what it stores otherwise: in BERT, query, key and value, which are one
matrix here; in GPT-2, every matrix of the blocks, which is transposed there. "Opened" alone would
flatter whoever puts off reading, so "opened and touched" also adds up every weight. The last row
of each model is a file that Firth wrote, which it reads once more to compare it with its checksum.
The ratio is the least of those of both rows and models.

Memory is how much the peak of the resident set (VmHWM) of a new process grows over `import torch`,
by the import of the library and then by opening and touching the model.

    python bench/load.py
    python bench/load.py --repeats 15
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import measure

# A class to make it with, and one to open it with.
CLASSES = {
    "BERT-base": ("BertForMaskedLM", "AutoModelForMaskedLM"),
    "GPT-2": ("GPT2LMHeadModel", "AutoModelForCausalLM"),
}
SIDES = ("firth", "transformers")
LENGTH = 64  # tokens whose scores are compared
CLOSE = 1e-4  # how much they may differ


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        ratios = [_compare(model, Path(folder, model), options.repeats) for model in CLASSES]
    print(f"ratio: {min(ratios):.2f}")


def _compare(model: str, folder: Path, repeats: int) -> float:
    """Print the rows of one model; the smaller of the two ratios of speed."""
    _write(model, folder)
    openers = {side: opener(side, model) for side in SIDES}
    ours, theirs = (openers[side](folder) for side in SIDES)
    difference = _difference(ours.network, theirs)
    ours.save(folder / "own")
    size = (folder / "model.safetensors").stat().st_size
    print(f"{model}, {size / 1e6:.0f} MB, scores differ by at most {difference:.0e}")
    del ours, theirs

    print(f"{'':34}    best  median of {repeats} (seconds)")
    ratios = []
    for what, then in (("opened", _leave), ("opened and touched", _touch)):
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(repeats):
            for side in SIDES:
                times[side].append(_time(openers[side], folder, then))
        for side in SIDES:
            _print_times(f"{side}, {what}", times[side])
        ratios.append(min(times["transformers"]) / min(times["firth"]))
    own = [_time(openers["firth"], folder / "own", _touch) for _ in range(repeats)]
    _print_times("firth, its own file, touched", own)
    for side in SIDES:
        _print_memory(side, model, folder)
    return min(ratios)


def opener(side: str, model: str) -> Callable[[Path], Any]:
    """How a side opens a model; the library is imported here."""
    if side == "firth":
        import firth

        return firth.load
    import transformers

    transformers.logging.disable_progress_bar()
    _, automatic = (getattr(transformers, name) for name in CLASSES[model])  # both are imported now
    opened: Callable[[Path], Any] = automatic.from_pretrained
    return opened


def _write(model: str, folder: Path) -> None:
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    made = getattr(transformers, CLASSES[model][0])
    made(made.config_class()).save_pretrained(folder)  # the shape is that of a silent config.json


@torch.no_grad()
def _difference(network: Any, theirs: Any) -> float:
    """How much the two differ in what they say of some tokens, at most."""
    from firth.models.masks import Mask

    tokens = torch.randint(0, network.config.vocab_size, (LENGTH,))
    encoder = network.config.architecture == "encoder"
    mask = Mask([LENGTH]) if encoder else Mask.causal([LENGTH])
    ours = network.logits(network(tokens, mask))
    difference = float((ours - theirs.eval()(tokens[None]).logits[0]).abs().max())
    if not difference <= CLOSE:
        raise SystemExit(f"The two models are not the same: scores differ by {difference}.")
    return difference


def _time(opened: Callable[[Path], Any], folder: Path, then: Callable[[Any], Any]) -> float:
    gc.collect()
    started = time.perf_counter()
    model = opened(folder)
    then(model)
    return time.perf_counter() - started


def _leave(model: Any) -> None:
    """Do nothing with it."""


def _touch(model: Any) -> float:
    """Add up every weight."""
    module = getattr(model, "network", model)
    return float(sum(parameter.detach().sum() for parameter in module.parameters()))


def _print_times(what: str, seconds: list[float]) -> None:
    print(f"  {what:32}  {min(seconds):6.3f}  {statistics.median(seconds):6.3f}")


def _print_memory(side: str, model: str, folder: Path) -> None:
    measured = measure(grown, side, model, folder)
    assert measured is not None
    imported, opened = measured.result
    print(f"  {side}: {imported / 1e6:.0f} MB of memory for the import, {opened / 1e6:.0f} MB more")


def grown(side: str, model: str, folder: Path) -> tuple[int, int]:
    """Bytes that the peak of a new process grows by: for the library, then for the model."""
    torch.nn.Embedding(8, 8, device="meta")  # for this, torch imports 70 MB of itself
    before = _peak()
    opened = opener(side, model)
    imported = _peak()
    _touch(opened(folder))
    return imported - before, _peak() - imported


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main()
