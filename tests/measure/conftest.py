"""What holds for every test of this folder: the workspace is empty, measuring is brief, a Llama is small."""

import sys
from types import SimpleNamespace

import pytest

from qnnkit.measure import clock
from qnnkit.models.causal_lm import LLAMA


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """The workspace."""
    figuring = sys.modules["qnnkit.measure.figures"]  # the package's attribute is the function
    monkeypatch.setattr(figuring, "ARRAY", 2**22)
    monkeypatch.setattr(figuring, "LONG_ENOUGH", 1e-4)
    monkeypatch.setitem(LLAMA, "small", (64, 2, 4, 4, 172, 500))  # hidden, layers, heads, inner, vocabulary
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def virtual(monkeypatch):
    """A clock that goes on by what steps say that they take: no other work on this machine decides a test."""
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now
