"""Settings of all comparisons with reference libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """No progress bars, only errors in the log, and one thread, as the networks are so small."""
    level, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()
    transformers.logging.set_verbosity(level)
    torch.set_num_threads(threads)
