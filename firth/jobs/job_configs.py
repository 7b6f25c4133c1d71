"""Configs of `pretrain` and `finetune`: their keyword arguments and the options of their verbs.

Importing this module is fast: it imports neither torch nor numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.data.memory import Data
from firth.utils.config_fields import Doc

if TYPE_CHECKING:
    from firth.model import Model
    from firth.tokenizers.tokenizer import Tokenizer
    from firth.utils.devices import Device

# Fields of several configs and verbs.
DTYPE = Doc("Weights as float32, bfloat16 or float16. Default: as in the checkpoint.", "Model", str)
DEVICE = Doc("cpu, cuda, cuda:N or mps. Default: the CUDA GPU if there is one.", "Model", str)
LIMIT = Doc("Use at most this many examples, stratified by label; 0: all.", "Data", min=0)
COLUMNS = Doc(
    "Name of a column in your file, such as text=review or label=stars; repeatable. Default: "
    "the usual names.",
    "Data",
    list[str],
    "ROLE=NAME",
)
STRICT = Doc("End with an error if a row is bad. Default: skip bad rows and report them.", "Data")
OVERWRITE = Doc("Replace an existing output.", "Output")
FORMAT = Doc(
    "File format of standard input or of a file with an unknown extension: txt, jsonl, csv, tsv, "
    "conll, … Default: from the extension.",
    "Data",
)
RUN_DIRECTORY = Doc("Run directory to write; --dry-run needs none. Default: none.", "Output", Path)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The fields that pre-training and fine-tuning share."""

    learning_rate: Annotated[float | None, Doc("Peak learning rate. Default: the recipe's.")] = None
    warmup: Annotated[
        float | None,
        Doc("Warm-up: a fraction of the run (below 1) or steps. Default: the recipe's."),
    ] = None
    weight_decay: Annotated[float | None, Doc("Decoupled weight decay. Default: the recipe's.")] = (
        None
    )
    precision: Annotated[
        str | None, Doc("fp32, bf16, fp16 or auto. Default: auto, the fastest on the device.")
    ] = None
    parallel: Annotated[
        str | None,
        Doc(
            "Under torchrun: replicate the weights on all ranks, shard them (FSDP2, pre-training "
            "only), or auto: shard if they do not fit. Default: auto."
        ),
    ] = None
    seed: Annotated[int, Doc("Random seed.")] = 0
    overrides: Annotated[
        Mapping[str, Any] | None,
        Doc(
            "Override any other field of the run's config; repeatable. Default: none.",
            kind=list[str],
            metavar="KEY=VALUE",
        ),
    ] = None
    device: Annotated["Device", DEVICE] = None
    resume: Annotated[
        bool, Doc("Continue an interrupted run from its last checkpoint.", "Output")
    ] = False


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(JobConfig):
    """The arguments of `pretrain`; None: as in the recipe of the preset."""

    data: Annotated[
        Data,
        Doc(
            "Directory of shards written by `firth prepare`, or its URL (s3://bucket/shards); or "
            "text, with --tokenizer or --from.",
            "Data",
            str,
            "PATH",
        ),
    ]
    out: Annotated[str | Path | None, RUN_DIRECTORY] = None
    dry_run: Annotated[
        bool,
        Doc(
            "Do not train or write: print the peak memory of a rank and the bytes that it sends in "
            "a step. With --device cuda: for a GPU, also on a machine without one.",
            "Output",
        ),
    ] = False
    world_size: Annotated[
        int, Doc("With --dry-run: number of ranks (processes of torchrun).", "Output", min=1)
    ] = 1
    tokenizer: Annotated[
        "str | Path | Tokenizer | Model | None",
        Doc(
            "Tokenizer of a text in --data, which is prepared first. Default: that of the shards, "
            "or of --from.",
            "Data",
            str,
            "MODEL",
        ),
    ] = None
    mixture: Annotated[
        Mapping[str, float] | str | None,
        Doc(
            "Weights with which the named sources of the shards are sampled, such as "
            "en=0.3,ha=0.7. Default: as in the shards.",
            "Data",
            str,
            "NAME=WEIGHT,…",
        ),
    ] = None
    mixture_alpha: Annotated[
        float | None,
        Doc(
            "Sample each named source in proportion to its number of tokens to this power, from 0 "
            "(all equal) to 1 (as in the shards); XLM-R uses 0.3. Default: none.",
            "Data",
        ),
    ] = None
    objective: Annotated[
        str | None,
        Doc("Pre-training objective; `firth objectives` lists them. Default: the preset's."),
    ] = None
    steps: Annotated[
        int, Doc("Training budget in optimizer steps; 0: none. One budget is required.", min=0)
    ] = 0
    tokens: Annotated[
        int, Doc("Training budget in tokens, such as 10M or 1e7; 0: none.", kind=str)
    ] = 0
    minutes: Annotated[float, Doc("Training budget in minutes; 0: none.", min=0)] = 0.0
    batch_tokens: Annotated[
        int | str | None,
        Doc(
            "Tokens per optimizer step; may be a schedule: 8192:0.5,32768 is 8192 for the first "
            "half of the run, then 32768. Default: the recipe's.",
            kind=str,
            metavar="TOKENS",
        ),
    ] = None
    max_length: Annotated[
        int | str | None,
        Doc(
            "Maximum sequence length in tokens; may be a schedule: 64:0.8,256 is 64 for the first "
            "80 % of the run, then 256. Default: the recipe's.",
            kind=str,
            metavar="TOKENS",
        ),
    ] = None
    mask_prob: Annotated[
        float | str | None,
        Doc(
            "Fraction of tokens that masking objectives predict; may be a schedule: 0.3-0.15 falls "
            "linearly. Default: the recipe's, usually 0.15.",
            kind=str,
            metavar="FRACTION",
        ),
    ] = None
    optimizer: Annotated[str | None, Doc("adamw or muon. Default: the recipe's.")] = None
    preset: Annotated[
        str | None,
        Doc("Architecture; `firth presets` lists them. Default: that of --from.", "Model"),
    ] = None
    source: Annotated[
        "str | Path | Model | None",
        Doc("Model to continue from. Default: none.", "Model", str, "MODEL"),
    ] = None
    teacher: Annotated[
        "str | Path | Model | None",
        Doc("Larger model to distil from. Default: none.", "Model", str, "MODEL"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(JobConfig):
    """The arguments of `finetune`; None: as in the recipe of the task."""

    model: "str | Path | Model"
    task: Annotated[str, Doc("classify, tag, span, seq2seq, …; `firth tasks` lists them.", "Data")]
    train: Annotated[Data, Doc("File of training examples.", "Data", Path)]
    dev: Annotated[
        Data | None,
        Doc(
            "File of examples to select the best checkpoint on. Default: examples of "
            "--train are held out, or cross-validated if there are few.",
            "Data",
            Path,
        ),
    ] = None
    limit: Annotated[int, LIMIT] = 0
    columns: Annotated[Mapping[str, str] | None, COLUMNS] = None
    format: Annotated[str | None, FORMAT] = None
    strict: Annotated[bool, STRICT] = False
    augment: Annotated[
        str, Doc("Data augmentation: dropout, swap, masked; or swap,masked. Default: none.", "Data")
    ] = ""
    replay: Annotated[
        Data | None,
        Doc("Text to keep pre-training on, against forgetting. Default: none.", "Data", Path),
    ] = None
    recipe: Annotated[
        str | None, Doc("Named defaults; `firth tasks` lists them. Default: the task's first.")
    ] = None
    epochs: Annotated[float | None, Doc("Passes over the training set. Default: the recipe's.")] = (
        None
    )
    batch_size: Annotated[
        int | None, Doc("Examples per optimizer step. Default: the recipe's.", min=1)
    ] = None
    max_length: Annotated[
        int | None, Doc("Maximum sequence length in tokens. Default: the recipe's.", min=1)
    ] = None
    balance: Annotated[bool, Doc("Weight the loss by inverse label frequency.")] = False
    strategy: Annotated[
        str,
        Doc(
            "What to train: full, freeze:N, probe, probe-then-full, gradual, lora, adapters, "
            "prefix, prompt, bitfit or ia3, with options as in lora:rank=16 or probe:layer=3. "
            "Several in quotes, or all, are compared. Default: the recipe's.",
            "Model",
        ),
    ] = ""
    decoder: Annotated[
        "str | Path | Model | None",
        Doc("Decoder to join to an encoder, for seq2seq. Default: none.", "Model", str, "MODEL"),
    ] = None
    vectors: Annotated[
        "str | Path | Model | None",
        Doc(
            "Input vectors of words for a task-specific model (cnn, lstm, …): a file of word2vec, "
            "GloVe or fastText, or a model with hidden states (ELMo, an encoder). Default: none.",
            "Model",
            str,
            "MODEL",
        ),
    ] = None
    general_text: Annotated[
        Data | None,
        Doc(
            "Text on which a preset, such as awd-lstm, is pre-trained first (recipe ulmfit). "
            "Default: none.",
            "Model",
            Path,
        ),
    ] = None
    scratch: Annotated[bool, Doc("Start from random weights, as a baseline.", "Model")] = False
    out: Annotated[str | Path | None, RUN_DIRECTORY] = None
    dry_run: Annotated[
        bool,
        Doc(
            "Train and write nothing: show trainable parameters, memory, steps and time, for "
            "--strategy or else for all strategies.",
            "Output",
        ),
    ] = False
    tokenizer: Annotated[
        "str | Path | Tokenizer | Model | None",
        Doc(
            "With --scratch: tokenizer of a model that is a preset. Default: the model's own, or "
            "for a task-specific model the words of --train.",
            "Model",
            str,
            "MODEL",
        ),
    ] = None
