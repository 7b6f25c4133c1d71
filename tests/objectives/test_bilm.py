"""Language modelling in both directions, on literal tokens."""

from dataclasses import replace

import pytest

from firth.models.presets import PRESETS, preset
from firth.objectives.bilm import bilm
from firth.objectives.registry import OBJECTIVES
from firth.objectives.toy_vocabulary import packed, predicted
from firth.tokenizers.trainer import train_tokenizer
from firth.training.pretrain_config import preset_config
from firth.utils.errors import UsageError


def test_tokens_are_predicted_from_both_sides() -> None:
    batch = bilm(packed("the dog barked .", "a", "a fox"))
    forward, backward = batch.predictions["forward"], batch.predictions["backward"]
    assert forward.positions.tolist() == [0, 1, 2, 5]
    assert predicted(batch, "forward") == "dog barked . fox"
    assert backward.positions.tolist() == [1, 2, 3, 6]
    assert predicted(batch, "backward") == "the dog barked a"


def test_the_loss_is_the_mean_of_both() -> None:
    assert OBJECTIVES["bilm"].loss_weights == {"forward": 0.5, "backward": 0.5}


def test_a_decoder_without_backward_model_is_refused() -> None:
    tokenizer, _ = train_tokenizer(["the bat"] * 2, kind="word")
    assert preset_config(preset("elmo"), tokenizer).predicts_backward
    with pytest.raises(UsageError, match="backward"):
        preset_config(replace(PRESETS["decoder-tiny"], objective="bilm"), tokenizer)
