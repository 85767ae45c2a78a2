"""What holds for every test of this folder: the workspace is empty, measuring is brief, a Llama is small."""

import sys
from types import SimpleNamespace

import pytest

from qnnkit.measure import clock
from qnnkit.models.causal_lm import LLAMA


@pytest.fixture(autouse=True)
def brief(home, monkeypatch):
    figuring = sys.modules["qnnkit.measure.figures"]  # the package's attribute is the function
    monkeypatch.setattr(figuring, "ARRAY", 2**22)
    monkeypatch.setattr(figuring, "LONG_ENOUGH", 1e-4)
    monkeypatch.setitem(LLAMA, "small", (64, 2, 4, 4, 172, 500))  # hidden, layers, heads, inner, vocabulary


@pytest.fixture
def virtual(monkeypatch):
    """A clock that goes on by what steps say that they take: no other work on this machine decides a test."""
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now
