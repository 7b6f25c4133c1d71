"""Embedded models, shared by the tests of this folder."""

from __future__ import annotations

import pytest

import firth
from firth import Model


@pytest.fixture(scope="session")
def encoder() -> Model:
    return firth.load("stories-encoder")


@pytest.fixture(scope="session")
def decoder() -> Model:
    return firth.load("stories-decoder")


@pytest.fixture(scope="session")
def seq2seq() -> Model:
    return firth.load("stories-seq2seq")
