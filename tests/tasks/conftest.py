"""Fixture for every test of this folder: a tiny Llama is even smaller."""

from unittest import mock

import pytest

from qnnkit.models.causal_lm import LLAMA


@pytest.fixture(autouse=True, scope="package")
def tinier():
    with mock.patch.dict(LLAMA, tiny=(64, 2, 2, 2, 128, 300)):  # hidden, layers, heads, inner, vocabulary
        yield
