"""The shards and small settings of the training tests."""

from tests.training.conftest import *  # noqa: F403
