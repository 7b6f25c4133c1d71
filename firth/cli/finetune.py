"""`firth finetune`: fine-tune a model on labelled examples of a task."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs.job_configs import FinetuneConfig
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth finetune bert-base-uncased --task classify --train train.tsv --dev dev.tsv "
    "--out runs/sentiment --lr 2e-5 --epochs 3",
    "firth finetune runs/encoder --task tag --train train.conll --out runs/entities "
    "--strategy lora:rank=8",
    "firth finetune stories-encoder --task classify --train train.tsv --dry-run",
)


@options.with_options(FinetuneConfig, panel="Training")
def finetune(
    model: str = options.MODEL,
    seeds: int = options.TrainingOption(
        1, min=1, help="Number of runs with different seeds; reports mean ± std."
    ),
    search: bool = options.TrainingOption(
        False, "--search", help="Grid search over learning rate, batch size and frozen layers."
    ),
    minutes: float = options.TrainingOption(
        0.0, min=0, help="With --search: start no run after this time in minutes; 0: no limit."
    ),
    **settings: Any,
) -> Output:
    """Fine-tune a model on labelled examples of a task.

    Any other field of the config is set with --set: schedule=cosine, head.layers=2, task.prefix=….
    """
    from firth.cli import terminal
    from firth.cli.views import tasks as view
    from firth.jobs import sweep
    from firth.jobs.finetuning import finetune

    out, strategy, resume = settings.pop("out"), settings.pop("strategy"), settings.pop("resume")
    several, dry_run = strategy.split(), settings.pop("dry_run")
    sweeps = (seeds > 1, search, len(several) > 1 or several == ["all"])
    if sum(sweeps) > 1:
        raise UsageError("Use one of --seeds, --search and several strategies, not two of them.")
    if dry_run and (seeds > 1 or search or resume):
        raise UsageError("--dry-run is for one run: omit --seeds, --search and --resume.")
    if resume and any(sweeps):
        raise UsageError("--resume continues one run; several runs need an empty directory.")
    if search and strategy:
        raise UsageError("--search chooses between full and freeze itself: omit --strategy.")
    if minutes and not search:
        raise UsageError("--minutes is for --search; for one run use --set minutes=N.")
    settings["overrides"] = options.overrides(settings["overrides"])
    settings["columns"] = options.column_names(settings["columns"])
    settings["model"] = model
    with terminal.training() as callback:
        settings["callback"] = callback
        if dry_run:
            cost = finetune(strategy=strategy, dry_run=True, **settings)
            return Output(cost.values(), view.dry_run(cost))
        if out is None:
            raise UsageError("--out is missing: the run directory to write.")
        if not any(sweeps):
            result = finetune(out=out, strategy=strategy, resume=resume, **settings)
            return Output(result.values(), view.finetuned(result))
        if search:
            swept = sweep.search(out, minutes=minutes, **settings)
        elif seeds > 1:
            swept = sweep.seeds(seeds, out, strategy=strategy, **settings)
        else:
            swept = sweep.strategies(several, out, **settings)
    return Output(swept.values(), view.sweep(swept, out))
