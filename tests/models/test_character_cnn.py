"""The character CNN against loops over words, windows and filters."""

import numpy as np
import torch

from firth.models.character_cnn import CharacterCNN, WordCharacters
from firth.tokenizers.characters import stack_characters
from firth.tokenizers.trainer import train_tokenizer

WORDS = ["a", "extraordinarily", "bat", "été"]


def by_hand(network: CharacterCNN, word: str) -> np.ndarray:
    """Compute the features before the highway layers with one product per window and filter."""
    row = stack_characters([word])[0]
    table = network.embeddings.weight.detach().numpy()
    embedded = table[row[row > 0]]
    features = []
    for layer in network.convolutions:
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()  # (F, E, width)
        width = weight.shape[2]
        padding = np.zeros((max(0, width - len(embedded)), embedded.shape[1]))
        text = np.concatenate([embedded, padding])
        for filter, own in zip(weight, bias, strict=True):
            starts = range(len(text) - width + 1)
            features.append(max((text[i : i + width] * filter.T).sum() + own for i in starts))
    return np.maximum(features, 0)


def test_features_are_maxima_over_windows() -> None:
    torch.manual_seed(0)
    network = CharacterCNN(4, [(1, 3), (2, 3), (7, 5)], highway_layers=0)
    found = network(torch.tensor(stack_characters(WORDS))).detach().numpy()
    expected = np.stack([by_hand(network, word) for word in WORDS])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_vector_depends_on_the_word_alone() -> None:
    torch.manual_seed(0)
    network = CharacterCNN(4, [(2, 6), (5, 6)], highway_layers=2, output_size=8)
    together = network(torch.tensor(stack_characters(WORDS)))
    alone = torch.cat([network(torch.tensor(stack_characters([word]))) for word in WORDS])
    torch.testing.assert_close(together, alone)
    assert network(torch.tensor(stack_characters([]))).shape == (0, 8)


def test_highway_with_a_closed_gate_keeps_its_input() -> None:
    network = CharacterCNN(4, [(2, 6)], highway_layers=1)
    gate = network.highways[0].gate
    torch.nn.init.zeros_(gate.weight)
    torch.nn.init.constant_(gate.bias, -1e9)
    characters = torch.tensor(stack_characters(WORDS))
    plain = CharacterCNN(4, [(2, 6)], highway_layers=0)
    plain.load_state_dict(network.state_dict(), strict=False)
    torch.testing.assert_close(network(characters), plain(characters))


def test_characters_of_known_and_open_words() -> None:
    tokenizer, _ = train_tokenizer(["the bat"] * 2, kind="word")
    words = WordCharacters(len(tokenizer))
    words.read_vocabulary(tokenizer)
    ids = torch.tensor(tokenizer.open_encode("the okapi the bat okapi"))
    characters, inverse = words(ids)
    assert len(characters) == 3
    expected = stack_characters("the okapi the bat okapi".split())
    assert (characters[inverse].numpy() == expected).all()
