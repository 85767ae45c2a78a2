"""Checks: one sentence, and it names the argument, the rule, the value and the next step."""

from __future__ import annotations

import math
import re

import pytest
import torch

from qnnkit import checks

CHOICES = ("angle", "amplitude", "iqp")


def sentence(caught, argument: str, value: str) -> None:
    text = str(caught.value)
    assert re.fullmatch(rf"Argument `{argument}` must .+, but is {re.escape(value)}\. [A-Z].+\.", text), text


def test_message():
    text = checks.message("wires", "lie in 0..3", (0, 4), "Drop wire 4.")
    assert text == "Argument `wires` must lie in 0..3, but is (0, 4). Drop wire 4."


@pytest.mark.parametrize(
    ("value", "nearest"), [("amplitud", "amplitude"), ("angel", "angle"), ("xyz", None), ("", None)]
)
def test_nearest(value, nearest):
    assert checks.nearest(value, CHOICES) == nearest


def test_choice():
    assert checks.choice("embedding", "iqp", CHOICES) == "iqp"
    with pytest.raises(ValueError) as caught:
        checks.choice("embedding", "angel", CHOICES)
    sentence(caught, "embedding", "'angel'")
    assert "Did you mean 'angle'? The choices are angle, amplitude, iqp." in str(caught.value)
    with pytest.raises(ValueError) as caught:
        checks.choice("embedding", "xyz", CHOICES)
    sentence(caught, "embedding", "'xyz'")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 0.0, -1e-9, math.nan])
def test_positive(value):
    with pytest.raises(ValueError) as caught:
        checks.positive("n_qubits", value)
    sentence(caught, "n_qubits", repr(value))


@pytest.mark.parametrize("value", [1, 1e-9, math.inf])
def test_positive_passes(value):
    assert checks.positive("n_qubits", value) is None


@pytest.mark.parametrize("shape", [(), (3,), (4, 3), (4, 0)])
def test_last_axis(shape):
    with pytest.raises(ValueError) as caught:
        checks.last_axis("inputs", torch.zeros(shape), 4, "Give four.")
    sentence(caught, "inputs", str(shape))
    assert "have shape (..., 4)" in str(caught.value)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4)])
def test_last_axis_passes(shape):
    assert checks.last_axis("inputs", torch.zeros(shape), 4, "Give four.") is None


@pytest.mark.parametrize(("shape", "passes"), [((2,), False), ((2, 3), True), ((2, 3, 4), False)])
def test_axes(shape, passes):
    if passes:
        assert checks.axes("images", torch.zeros(shape), "batch, height", "Add one.") is None
        return
    with pytest.raises(ValueError) as caught:
        checks.axes("images", torch.zeros(shape), "batch, height", "Add one.")
    sentence(caught, "images", str(shape))


def test_folder(tmp_path):
    assert checks.folder("data_dir", str(tmp_path), "Make it.") == tmp_path
    (tmp_path / "file").touch()
    for name, error in (("file", NotADirectoryError), ("nothing", FileNotFoundError)):
        with pytest.raises(error) as caught:
            checks.folder("data_dir", tmp_path / name, "Make it.")
        sentence(caught, "data_dir", repr(str(tmp_path / name)))


def test_an_argument_is_named_as_its_caller_knows_it():
    with pytest.raises(FileNotFoundError) as caught, checks.renamed({"root": "data_dir"}):
        raise FileNotFoundError(2, checks.message("root", "be there", "root", "Make it."))
    assert caught.value.errno == 2
    assert caught.value.args[1] == "Argument `data_dir` must be there, but is 'root'. Make it."
    for other in (ValueError("root"), ValueError(checks.message("folder", "be `root`", 1, "Do."))):
        with pytest.raises(ValueError) as caught, checks.renamed({"root": "data_dir"}):
            raise other
        assert caught.value is other
