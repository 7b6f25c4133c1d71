"""Two models on one file: texts, vectors, numbers and the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from firth import Model, Tokenizer
from firth.inspection import model_comparison
from firth.inspection.comparison_results import ComparedModel, ModelComparison
from firth.inspection.layer_probes import LayerProbes
from firth.inspection.model_comparison import compare_models, mean_vectors, read_sample
from firth.inspection.similarity import linear_cka
from firth.metrics.bootstrap import Metric
from firth.tasks.readers.columns import TaskFile
from firth.utils.errors import FirthError, InputError, UsageError
from firth.utils.figures import LineChart, Paragraph, ScatterPlot, Tabs

ANIMALS, PLACES = ("dog", "cat", "bird", "horse", "fish"), ("river", "village", "garden")
ROWS = [
    (f"The {animal} was {word} at the {place}.", label)
    for animal in ANIMALS
    for place in PLACES
    for word, label in (("happy", "good"), ("afraid", "bad"))
]


@pytest.fixture(scope="module")
def comparison(encoder: Model, decoder: Model) -> ModelComparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_comparison, "MAX_PICTURES", 3)
        return compare_models(encoder, decoder, ROWS, limit=10)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "seq2seq"])
def test_a_text_is_the_mean_of_its_tokens(kind: str, request: pytest.FixtureRequest) -> None:
    """Without special tokens, and without the first token of a decoder."""
    model: Model = request.getfixturevalue(kind)
    texts = ["The dog.", "The old dog sat by the river, and a cat came."]
    found, cut = mean_vectors(model, texts)
    assert cut == 0
    for text, vectors in zip(texts, found.swapaxes(0, 1), strict=True):
        tokens = model.tokens(text)
        used = [i for i, token in enumerate(tokens) if not token.startswith(("[", "<"))]
        expected = model.hidden_states(text)[:, used].mean(1)
        assert np.allclose(vectors, expected.numpy(), atol=1e-4)


def test_the_first_token_of_a_decoder_is_left_out(decoder: Model) -> None:
    """Here it is no special token."""
    backend = tokenizers.Tokenizer.from_str(decoder.require_tokenizer().to_json())
    backend.post_processor = tokenizers.processors.ByteLevel()
    model = Model(decoder.network, Tokenizer(backend, {}))
    found = mean_vectors(model, ["The old dog."])[0][-1]
    states = model.hidden_states("The old dog.")[-1]
    assert np.allclose(found[0], states[1:].mean(0).numpy(), atol=1e-4)
    assert not np.allclose(found[0], states.mean(0).numpy(), atol=1e-2)


def test_numbers_of_both_models(comparison: ModelComparison) -> None:
    a, b = (model.vectors for model in comparison.models)
    assert comparison.cka[2, 4] == pytest.approx(linear_cka(a[2], b[4]), abs=1e-4)
    assert comparison.own_cka[1][3, 3] == pytest.approx(1, abs=1e-5)
    assert comparison.chance_cka < comparison.cka.mean()
    assert [pair[:2] for pair in comparison.agreement] == [(i, i) for i in range(6)]
    first, second = (model.probes for model in comparison.models)
    assert first
    assert second
    assert comparison.difference
    gain = first.accuracy.value - second.accuracy.value
    assert comparison.difference.value == pytest.approx(gain)
    assert comparison.majority == 0.5
    i, j = comparison.most_similar
    assert comparison.cka[i, j] == comparison.cka.max()


def test_values_and_figures(comparison: ModelComparison) -> None:
    values = json.loads(json.dumps(comparison.values(), allow_nan=False))
    assert values["labels"] == {"bad": 5, "good": 5}
    assert [model["model"] for model in values["models"]] == ["stories-encoder", "stories-decoder"]
    assert len(values["models"][0]["layers"]) == 6
    assert len(values["points"]) == len(values["pictures"][0]["tsne"][1]) == 10
    figures = comparison.figures()
    paragraphs = [one for one in figures if isinstance(one, Paragraph)]
    assert paragraphs == [Paragraph(comparison.summary)]  # the page shows the notes
    assert comparison.notes
    charts = [one for one in figures if isinstance(one, LineChart)]
    assert charts[0].y_label == "accuracy"
    assert "last layer" in charts[0].caption  # too few texts to choose one
    assert list(charts[0].lines)[:2] == ["stories-encoder", "stories-decoder"]
    tables, pictures = (one for one in figures if isinstance(one, Tabs))
    assert len(tables.names) == 3
    assert pictures.names == ("0", "2", "5")
    assert all(isinstance(one, ScatterPlot) for one in pictures.figures[1])
    [pca, _, tsne, _] = pictures.figures[1]
    assert isinstance(pca, ScatterPlot)
    assert isinstance(tsne, ScatterPlot)
    assert [pca.title.split()[0], tsne.title.split()[0]] == ["PCA", "t-SNE"]
    assert {point.group for point in pca.points} == {"good", "bad"}


def test_models_of_other_depth_without_labels(encoder: Model, decoder: Model) -> None:
    """Such as a network of two layers; layers of the same relative depth are compared."""
    embedder_layers = encoder.network.encode

    class Shallow:
        """The encoder, of which only some layers are seen."""

        def __call__(self, *args: Any, layers: Any = None, **inputs: Any) -> Any:
            found: list[Any] = []
            last = embedder_layers(*args, layers=found, **inputs)
            if layers is not None:
                layers += found[::2][:2] + found[-1:]
            return last

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_comparison, "MAX_PICTURES", 2)
        patch.setattr(encoder.network, "encode", Shallow())
        found = compare_models(encoder, decoder, [text for text, _ in ROWS[:12]])
    assert found.cka.shape == (3, 6)
    pairs = [(first, second) for first, second, _ in found.agreement]
    assert pairs == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
    assert found.difference is None
    assert any("no labels" in note for note in found.notes)
    line = next(one for one in found.figures() if isinstance(one, LineChart))
    assert line.y_label != "accuracy"
    assert [point.x for point in line.lines["stories-encoder"]] == [0, 0.5, 1]
    assert "probe" not in found.summary
    assert json.dumps(found.values())


def result(difference: Metric, first: float, second: float) -> ModelComparison:
    """A comparison with given accuracies."""

    def model(name: str, accuracy: float) -> ComparedModel:
        right = (np.arange(20) < 20 * accuracy).astype(float)
        probes = LayerProbes(right[None], (0,) * 5, right)
        return ComparedModel(
            name=name, vectors=np.zeros((1, 20, 2), np.float32), anisotropy=(0.5,), probes=probes
        )

    return ModelComparison(
        source="a.tsv",
        texts=("text",) * 20,
        labels=("x", "y") * 10,
        models=(model("one", first), model("two", second)),
        cka=np.ones((1, 1)),
        own_cka=(np.ones((1, 1)), np.ones((1, 1))),
        chance_cka=0.1,
        agreement=((0, 0, 1.0),),
        pictured=np.arange(20),
        pictures=(),
        difference=difference,
    )


def test_the_summary_names_the_better_model_or_none() -> None:
    worse = result(Metric(value=-0.4, low=-0.6, high=-0.2), 0.5, 0.9).summary
    assert "probe of two is more accurate than one of one" in worse
    for number in ("0.900 for two", "0.500 for one", "0.400", "0.200 to 0.600", "20 texts"):
        assert number in worse
    unknown = result(Metric(value=0.1, low=-0.1, high=0.3), 0.9, 0.8).summary
    assert "not differ significantly" in unknown
    assert "-0.100 to 0.300" in unknown
    equal = result(Metric(value=0, low=None, high=None, reason="equal"), 0.9, 0.9).summary
    assert "not differ significantly" in equal


def sample(rows: Any, **options: Any) -> Any:
    file = TaskFile(model_comparison.as_source(rows, "data", "text, label"), **options)
    return read_sample(file, 16, 0)


def test_the_sample_is_stratified_and_has_no_repeated_text() -> None:
    found = sample(
        [*ROWS, *ROWS[:3], ("", "good"), ("Unlabelled.", None)], labels="optional", allow_empty=True
    )
    assert len(found.texts) == len(set(found.texts)) == 16
    assert found.labels.count("good") == found.labels.count("bad") == 8
    notes = " ".join(found.notes)
    for part in ("3 repeated", "1 text", "16 of the 30"):
        assert part in notes


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS[:6], "6 different texts"),
        ([(text, "same") for text, _ in ROWS], "'same'"),
        ([], "0 different texts"),
    ],
)
def test_texts_that_cannot_be_compared(encoder: Model, rows: list[Any], words: str) -> None:
    with pytest.raises(FirthError, match=words):
        compare_models(encoder, encoder, rows)


def test_files_that_cannot_be_compared(encoder: Model, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("name\tlabel\nx\ty\n")
    with pytest.raises(InputError, match=r"a\.tsv line 1 has no column 'text'"):
        compare_models(encoder, encoder, tmp_path / "a.tsv")
    with pytest.raises(UsageError, match="limit"):
        compare_models(encoder, encoder, ROWS, limit=5)


def test_lists_of_labels_and_numbers_are_no_classes() -> None:
    many = [{"text": text, "label": [label, "x"]} for text, label in ROWS]
    assert sample(many, labels="optional").labels == ()
    numbers = [(f"{text} {i}", i / 7) for i, (text, _) in enumerate(ROWS * 2)]
    found = sample(numbers, labels="optional")
    assert found.labels == ()
    assert "60 labels" in found.notes[0]
