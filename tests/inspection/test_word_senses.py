"""The vectors of a word in several texts."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from firth import Model
from firth.inspection import word_neighbours
from firth.inspection.layer_vectors import encode_text, layer_embedder, layer_means
from firth.inspection.word_neighbours import nearest_in_corpus, nearest_in_vocabulary
from firth.inspection.word_senses import word_senses
from firth.utils.errors import FirthError, InputError, UsageError
from firth.utils.figures import DataTable, Heatmap, LineChart, ScatterPlot, Tabs

TEXTS = [
    "The old dog sat by the river. The dog was happy.",
    "Every Dog in the village barked at the dogs.",
    "She fed the dog.",
]
RARE = "zyxwvut"  # several tokens


@pytest.mark.parametrize("kind", ["encoder", "decoder", "seq2seq"])
def test_vectors_are_the_hidden_states(kind: str, request: pytest.FixtureRequest) -> None:
    """Also of a batch of texts of different lengths, and of a word of several tokens."""
    model: Model = request.getfixturevalue(kind)
    texts = [text.replace("dog", RARE).replace("Dog", RARE) for text in TEXTS]
    found = word_senses(model, RARE, texts)
    assert [one.text for one in found.occurrences] == [1, 1, 2, 3]  # but not `zyxwvuts`
    tokenizer = model.require_encoder_tokenizer() or model.require_tokenizer()
    for place, one in enumerate(found.occurrences):
        text = texts[one.text - 1]
        assert text[slice(*one.span)] == one.word == RARE
        encoding = tokenizer.encoding(text, specials=True)
        first, last = (encoding.char_to_token(at) for at in (one.span[0], one.span[1] - 1))
        assert last - first + 1 == len(one.ids) == len(one.pieces) > 1
        expected = model.hidden_states(text)[:, first : last + 1].mean(1)
        assert np.allclose(found.vectors[:, place], expected.numpy(), atol=1e-4)


def test_static_vectors_do_not_depend_on_context(encoder: Model) -> None:
    found = word_senses(encoder, "dog", TEXTS)
    [id] = set(found.occurrences[0].ids)
    assert np.allclose(found.static[0], encoder.network.tokens.weight[id].detach().numpy())
    same = [i for i, one in enumerate(found.occurrences) if one.ids == (id,)]
    assert np.allclose(found.cosines()[np.ix_(same, same)], 1)
    assert found.cosines(5)[0, 1] < 0.999  # the same word at two places of a text
    weight = encoder.network.tokens.weight.detach()
    near = torch.cosine_similarity(weight[id][None], weight).topk(2).values
    assert found.vocabulary[0][0].cosine <= float(near[1]) + 1e-5
    assert "dog" not in [one.token for one in found.vocabulary[0]]


def test_means_of_layers_are_compared_with_random_words(encoder: Model) -> None:
    found = word_senses(encoder, "dog", TEXTS)
    table = found.cosines(3)
    assert found.mean_cosines[3] == pytest.approx((table.sum() - len(table)) / 12)
    assert len(found.random_cosines) == len(found.vectors) == 6
    assert word_senses(encoder, "dog", ["dog", "dog dog"]).random_cosines == ()


def test_a_decoder_reads_to_the_left(decoder: Model) -> None:
    texts = ["We saw the dog by the river.", "We saw the dog at the old market.", "A dog. Dog"]
    found = word_senses(decoder, "dog", texts)
    assert np.allclose(found.vectors[:, 0], found.vectors[:, 1], atol=1e-4)
    assert found.cosines(5)[0, 2] < 0.99
    assert any("decoder" in note for note in found.notes)
    begins = [note for note in word_senses(decoder, "dog", ["Dog", "A dog"]).notes if "1" in note]
    assert begins == ["Occurrence 1 begins its text."]


def test_only_the_first_occurrences_are_compared(encoder: Model) -> None:
    exactly, more = (word_senses(encoder, "dog", ["dog " * n]) for n in (40, 41))
    assert len(exactly.occurrences) == len(more.occurrences) == 40
    assert exactly.notes == ()
    assert "40 of 41" in more.notes[0]


def test_the_vocabulary_is_read_in_parts(encoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, vectors = layer_embedder(encoder), np.ones((2, 192), dtype=np.float32)
    whole = nearest_in_vocabulary(embedder, vectors, [(), ()])
    monkeypatch.setattr(word_neighbours, "TOKENS", 999)
    tracemalloc.start()
    assert nearest_in_vocabulary(embedder, vectors, [(), ()]) == whole
    assert tracemalloc.get_traced_memory()[1] < encoder.network.tokens.weight.nbytes * 2
    tracemalloc.stop()


def test_neighbours_in_a_corpus(encoder: Model, tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("The cat slept. She fed the dog.\n\nAn old dog sat by the sea.\n" * 2)
    found = word_senses(encoder, "dog", TEXTS, neighbours=file, layer=2, top=3)
    near = found.neighbours
    assert near is not None
    assert (near.layer, near.sentences, near.words, near.complete) == (2, 4, 20, True)
    best = near.nearest[0][0]  # its own sentence, and that of text 3, are left out
    assert (best.word, best.sentence) == ("dog", "An old [dog] sat by the sea.")
    vectors = encoder.hidden_states("An old dog sat by the sea.")[2]
    place = encoder.tokens("An old dog sat by the sea.").index("Ġdog")
    expected = torch.cosine_similarity(vectors[place], torch.from_numpy(found.vectors[2, 0]), dim=0)
    assert best.cosine == pytest.approx(float(expected), abs=1e-4)
    assert [len(words) for words in near.nearest] == [3] * 4
    assert len({(one.word, one.sentence) for one in near.nearest[0]}) == 3


def test_a_large_corpus_is_read_in_part(encoder: Model) -> None:
    embedder = layer_embedder(encoder)
    vectors = np.ones((1, encoder.config.hidden_size), dtype=np.float32)
    corpus = [f"The girl has {number} apples." for number in range(200)]
    found = nearest_in_corpus(embedder, vectors, corpus, 5, max_words=400)
    assert not found.complete
    assert 400 <= found.words < 800
    assert found.sentences < 200


def test_long_texts_are_cut(encoder: Model) -> None:
    long = "The dog ran. " + "It was a fine day. " * 100 + "The dog slept."
    found = word_senses(encoder, "dog", [long, "A dog."])
    assert [one.text for one in found.occurrences] == [1, 2]
    assert any("text 1" in note for note in found.notes)
    with pytest.raises(UsageError, match="Text 2"):
        word_senses(encoder, "dog", ["A dog.", long.removeprefix("The dog ran. ")])


def test_errors_name_the_text(encoder: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Text 2 .*'dog'.*hotdog"):
        word_senses(encoder, "dog", ["A dog.", "A hotdog and dogs."])
    with pytest.raises(UsageError, match="empty"):
        word_senses(encoder, " ", TEXTS)
    with pytest.raises(UsageError, match="two"):
        word_senses(encoder, "dog", ["A dog."])
    with pytest.raises(UsageError, match="layer 9"):
        word_senses(encoder, "dog", TEXTS, layer=9)
    (tmp_path / "empty.txt").write_text("…\n")
    with pytest.raises(InputError, match=r"empty\.txt"):
        word_senses(encoder, "dog", TEXTS, neighbours=tmp_path / "empty.txt")


def test_values_and_figures(encoder: Model) -> None:
    found = word_senses(encoder, "dog", TEXTS, neighbours=["The dog barked."])
    values = json.loads(json.dumps(found.values(), allow_nan=False))
    assert values["summary"] == found.summary
    assert np.allclose(values["layers"][5]["cosines"], found.cosines(5), atol=1e-6)
    tabs = next(one for one in found.figures() if isinstance(one, Tabs))
    assert tabs.names == ("static", "0", "1", "2", "3", "4", "5")
    heatmap, picture = tabs.figures[-1]
    assert isinstance(heatmap, Heatmap)
    assert len(heatmap.rows) == 4
    assert isinstance(picture, ScatterPlot)
    assert TEXTS[1] in picture.points[2].text
    assert {LineChart, DataTable} <= {type(one) for one in found.figures()}


def test_a_network_with_nan_is_an_error(encoder: Model) -> None:
    embedder = layer_embedder(encoder)
    ids = encode_text(embedder, "A dog.").ids
    weight = encoder.network.tokens.weight.data
    before = weight[ids[1]].clone()
    weight[ids[1]] = torch.nan
    try:
        with pytest.raises(FirthError, match="not finite"):
            layer_means(embedder, [ids], [[[1]]])
    finally:
        weight[ids[1]] = before
