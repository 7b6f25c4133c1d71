"""Budgets of the demo in words, tokens and labels, so that results do not depend on the clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DemoBudget:
    """How much text, training and evaluation each chapter gets."""

    words: int  # of the corpus
    vocab_size: int
    pretraining_tokens: int
    labels: tuple[int, ...]  # of the comparison with training from scratch, increasing
    label_steps: int  # of each of its runs
    sentences: int  # with names
    name_steps: int
    questions: int
    question_steps: int
    test_questions: int
    searched: int  # passages
    search_queries: int  # to measure the search
    prompted: int  # texts
    lora_labels: int


FULL = DemoBudget(
    words=600_000,
    vocab_size=3000,
    pretraining_tokens=120_000,
    labels=(30, 100, 300),
    label_steps=40,
    sentences=300,
    name_steps=40,
    questions=400,
    question_steps=60,
    test_questions=100,
    searched=400,
    search_queries=60,
    prompted=100,
    lora_labels=300,
)
QUICK = DemoBudget(
    words=150_000,
    vocab_size=2000,
    pretraining_tokens=16_000,
    labels=(100,),
    label_steps=40,
    sentences=100,
    name_steps=40,
    questions=100,
    question_steps=16,
    test_questions=20,
    searched=80,
    search_queries=20,
    prompted=50,
    lora_labels=100,
)
