"""Fixtures for every test of this folder: an empty workspace, brief measurements, a small Llama."""

import sys
from types import SimpleNamespace

import pytest

from qnnkit.measure import clock
from qnnkit.models.causal_lm import LLAMA


@pytest.fixture(autouse=True)
def brief(home, monkeypatch):
    figuring = sys.modules["qnnkit.measure.figures"]  # not the function of that name
    monkeypatch.setattr(figuring, "ARRAY", 2**22)
    monkeypatch.setattr(figuring, "LONG_ENOUGH", 1e-4)
    monkeypatch.setitem(LLAMA, "small", (64, 2, 4, 4, 172, 500))  # hidden, layers, heads, inner, vocabulary


@pytest.fixture
def virtual(monkeypatch):
    """A clock that advances by the stated time of each step: a busy machine cannot change a result."""
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now
