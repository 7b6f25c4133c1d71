"""Heads compute the formulas of their papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firth.models.heads import HEADS, BoundaryHead, LanguageHead, PairHead, Pooler, make_head
from firth.models.pooling import pool
from firth.models.transformer import Transformer
from firth.utils.errors import UsageError
from tests.models.small import small

VOCABULARY, WIDTH = 7, 6
SIZE: dict[str, Any] = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_heads=2)


def draw(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def filled(head: nn.Module) -> nn.Module:
    """Return the head in double precision with random weights."""
    with torch.no_grad():
        for seed, parameter in enumerate(head.parameters()):
            parameter.data = 0.5 * draw(*parameter.shape, seed=seed)
    return head.double()


def test_a_plain_language_head_multiplies_with_the_embeddings() -> None:
    head = LanguageHead(small("encoder", **SIZE))
    hidden, table = draw(3, WIDTH), draw(VOCABULARY, WIDTH, seed=2)
    torch.testing.assert_close(head(hidden, table), hidden @ table.T)
    assert not list(head.parameters())


def test_bert_transforms_before_it_multiplies() -> None:
    config = small("encoder", **SIZE, head_transform=True, head_bias="trained", norm_eps=1e-12)
    head = filled(LanguageHead(config))
    hidden, table = draw(3, WIDTH), draw(VOCABULARY, WIDTH, seed=2)
    x = hidden @ head.transform.weight.T + head.transform.bias
    x = x * 0.5 * (1 + torch.erf(x / 2**0.5))  # GELU
    x = (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()
    x = x * head.norm.weight + head.norm.bias
    torch.testing.assert_close(head(hidden, table), x @ table.T + head.bias)


def test_t5_scales_before_the_output_matrix() -> None:
    hidden, table = draw(3, WIDTH), draw(VOCABULARY, WIDTH, seed=2)
    tied = LanguageHead(small("encoder", **SIZE, head_scale=True))
    torch.testing.assert_close(tied(hidden, table), hidden @ table.T / WIDTH**0.5)
    own = filled(LanguageHead(small("encoder", **SIZE, head_scale=True, tie_embeddings=False)))
    torch.testing.assert_close(own(hidden, table), hidden @ own.weight.T / WIDTH**0.5)


def test_a_smaller_embedding_is_transformed_to_its_size() -> None:
    """As in ALBERT and ELECTRA; a norm and a transform without biases as in ModernBERT."""
    biases = dict(transform_bias=False, norm_bias=False)
    head = filled(
        LanguageHead(small("encoder", **SIZE, **biases, embedding_size=4, head_transform=True))
    )
    hidden, table = draw(3, WIDTH), draw(VOCABULARY, 4, seed=2)
    x = nn.functional.gelu(hidden @ head.transform.weight.T)
    x = nn.functional.layer_norm(x, (4,), head.norm.weight, eps=head.norm.eps)
    torch.testing.assert_close(head(hidden, table), x @ table.T)


def test_mobilebert_extends_the_embeddings() -> None:
    config = small("encoder", **SIZE, embedding_size=4, trigrams=True, norm="affine")
    head = filled(LanguageHead(config))
    hidden, table = draw(3, WIDTH), draw(VOCABULARY, 4, seed=2)
    expected = hidden[:, :4] @ table.T + hidden[:, 4:] @ head.extension
    torch.testing.assert_close(head(hidden, table), expected)


def test_the_pair_head_uses_the_first_token() -> None:
    config = small("encoder", **SIZE)
    pooler, pair = filled(Pooler(config)), filled(PairHead(config))
    first = draw(3, WIDTH)
    pooled = torch.tanh(first @ pooler.dense.weight.T + pooler.dense.bias)
    expected = pooled @ pair.dense.weight.T + pair.dense.bias
    torch.testing.assert_close(pair(pooler(first)), expected)


def test_the_boundary_head_is_that_of_the_paper() -> None:
    """h = LN(GELU(W1 [x_left; x_right; p])), y = LN(GELU(W2 h)); section 3.2 of SpanBERT."""
    config = small("encoder", **SIZE, norm_eps=1e-12)
    head = filled(BoundaryHead(config))
    left, right = draw(4, WIDTH, seed=5), draw(4, WIDTH, seed=6)
    table = draw(VOCABULARY, WIDTH, seed=9)
    place = torch.tensor([1, 2, 30, 31])  # places beyond the thirtieth share the last vector

    def layer(x: Tensor, dense: nn.Linear, norm: nn.LayerNorm) -> Tensor:
        x = x @ dense.weight.T + dense.bias
        x = x * 0.5 * (1 + torch.erf(x / 2**0.5))
        x = (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()
        return x * norm.weight + norm.bias

    p = head.places.weight[[0, 1, 29, 29]]
    h = layer(torch.cat([left, right, p], dim=-1), head.first, head.first_norm)
    expected = layer(h, head.second, head.second_norm) @ table.T
    torch.testing.assert_close(head(left, right, place, table), expected)


def test_an_unknown_head_names_the_known() -> None:
    with pytest.raises(UsageError) as error:
        make_head("langauge", small("encoder", **SIZE))
    assert all(name in str(error.value) for name in ("'langauge'", *HEADS))


@pytest.mark.parametrize("layers", [0, 1])
def test_concat_pooling_is_last_max_and_mean(layers: int) -> None:
    """By hand: sequences (1, 4, 2) and (-3)."""
    hidden = torch.tensor([[1.0], [4.0], [2.0], [-3.0]])
    starts = torch.tensor([0, 3, 4])
    expected = [[2.0, 4.0, 7 / 3], [-3.0, -3.0, -3.0]]
    torch.testing.assert_close(pool(hidden, starts, "concat"), torch.tensor(expected))
    labels = dict(label_head="classify", labels=("a", "b"), label_layers=layers)
    network = Transformer(small("decoder", pooling="concat", **labels), ["classify"])
    size = network.config.hidden_size
    assert network.label_logits(torch.randn(4, size), starts).shape == (2, 2)
