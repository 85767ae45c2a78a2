"""Checks: one sentence, and it names the argument, the rule, the value and the next step."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from qnnkit import checks
from tests.toys import refused

CHOICES = ("angle", "amplitude", "iqp")


@pytest.mark.parametrize(
    ("value", "nearest"), [("amplitud", "amplitude"), ("angel", "angle"), ("xyz", None), ("", None)]
)
def test_choice_and_the_nearest(value, nearest):
    assert checks.choice("embedding", "iqp", CHOICES) == "iqp"
    with pytest.raises(ValueError) as caught:
        checks.choice("embedding", value, CHOICES)
    guess = f"Did you mean {nearest!r}? " if nearest else ""
    told = f"but is {value!r}. {guess}The choices are angle, amplitude, iqp."
    assert str(caught.value) == f"Argument `embedding` must be a known name, {told}"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (partial(checks.positive, "x"), [1, 1e-9, math.inf], [0, -1, 0.0, -1e-9, math.nan]),
        (
            lambda shape: checks.last_axis("x", torch.zeros(shape), 4, "Give four."),
            [(4,), (2, 3, 4), (0, 4)],
            [(), (3,), (4, 3), (4, 0)],
        ),
        (
            lambda shape: checks.axes("x", torch.zeros(shape), "batch, height", "Add one."),
            [(2, 3)],
            [(2,), (2, 3, 4)],
        ),
    ],
    ids=["positive", "last_axis", "axes"],
)
def test_what_passes_and_what_does_not(check, good, bad):
    for value in good:
        assert check(value) is None
    for value in bad:
        with refused("x") as caught:
            check(value)
        assert f"but is {value!r}. " in str(caught.value)


def test_folder(tmp_path):
    assert checks.folder("data_dir", str(tmp_path), "Make it.") == tmp_path
    (tmp_path / "file").touch()
    for name, error in (("file", NotADirectoryError), ("nothing", FileNotFoundError)):
        with refused("data_dir", error):
            checks.folder("data_dir", tmp_path / name, "Make it.")


def test_an_argument_is_named_as_its_caller_knows_it():
    with checks.renamed({"root": "data_dir"}), checks.renamed({"folder": "DST"}):
        told = checks.message("root", "be `root`", "root", "Make it.")
        assert told == "Argument `data_dir` must be `root`, but is 'root'. Make it."
        assert told.parts == ("data_dir", "be `root`", "root", "Make it."), "the reason as data"
    assert checks.message("root", "be there", 1, "Make it.").startswith("Argument `root` ")
