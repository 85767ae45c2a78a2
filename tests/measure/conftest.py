"""What holds for every test of this folder: measuring is brief, a Llama is small, the workspace is empty."""

import importlib
from types import SimpleNamespace

import pytest

from qnnkit.measure import clock
from qnnkit.models.causal_lm import LLAMA


@pytest.fixture(scope="module", autouse=True)
def brief():
    figuring = importlib.import_module("qnnkit.measure.figures")  # the package's attribute is the function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figuring, "ARRAY", 2**22)
        patch.setattr(figuring, "LONG_ENOUGH", 1e-4)
        patch.setitem(LLAMA, "small", (64, 2, 4, 4, 172, 500))  # hidden, layers, heads, inner, vocabulary
        yield


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """The workspace."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def virtual(monkeypatch):
    """A clock that goes on by what steps say that they take: no other work on this machine decides a test."""
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now
