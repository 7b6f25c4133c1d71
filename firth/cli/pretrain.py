"""`firth pretrain`: pre-train a language model, from scratch or from another model."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs.job_configs import PretrainConfig
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth pretrain --preset encoder-tiny --data runs/shards --out runs/encoder --tokens 10M "
    "--lr 1e-3 --mask-prob 0.3-0.15",
    "firth pretrain --from bert-base-uncased --data runs/shards --out runs/adapted --steps 1000 "
    "--max-length 128:0.9,512",
)
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


@options.with_options(PretrainConfig, panel="Training")
def pretrain(**settings: Any) -> Output:
    """Pre-train a language model, from scratch or from another model.

    Any other field of the config is set with --set: schedule=cosine, model.num_layers=6,
    objective.noise_density=0.3.
    """
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.jobs.pretraining import pretrain

    [settings["data"]] = options.only_paths([settings["data"]])
    settings["tokens"] = _parse_count(settings["tokens"])
    settings["overrides"] = options.overrides(settings["overrides"])
    if settings.pop("dry_run"):
        cost = pretrain(**settings, dry_run=True)
        return Output(cost.values(), view.pretraining_cost(cost))
    if settings["out"] is None:
        raise UsageError("--out is missing: the run directory to write.")
    with terminal.training() as callback:
        result = pretrain(**settings, callback=callback)
    return Output(result.values(), view.pretrained(result))


def _parse_count(text: str) -> int:
    """Parse a number of tokens.

    >>> _parse_count("10M"), _parse_count("1e7"), _parse_count("60k")
    (10000000, 10000000, 60000)
    """
    factor = SUFFIXES.get(text[-1:], 1)
    try:
        count = float(text[:-1] if factor > 1 else text) * factor
        if count < 0 or count != int(count):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--tokens is a number such as 5000000, 5M or 5e6, not {text!r}."
        ) from error
    return int(count)
