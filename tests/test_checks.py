"""Checks: one sentence, and it names the argument, the rule, the value and the next step."""

from __future__ import annotations

import math
import re
from functools import partial

import pytest
import torch

from qnnkit import checks

CHOICES = ("angle", "amplitude", "iqp")


def test_message():
    text = checks.message("wires", "lie in 0..3", (0, 4), "Drop wire 4.")
    assert text == "Argument `wires` must lie in 0..3, but is (0, 4). Drop wire 4."


@pytest.mark.parametrize(
    ("value", "nearest"), [("amplitud", "amplitude"), ("angel", "angle"), ("xyz", None), ("", None)]
)
def test_choice_and_the_nearest(value, nearest):
    assert checks.nearest(value, CHOICES) == nearest
    assert checks.choice("embedding", "iqp", CHOICES) == "iqp"
    with pytest.raises(ValueError) as caught:
        checks.choice("embedding", value, CHOICES)
    guess = f"Did you mean {nearest!r}? " if nearest else ""
    told = f"but is {value!r}. {guess}The choices are angle, amplitude, iqp."
    assert str(caught.value) == f"Argument `embedding` must be a known name, {told}"


AXIS = partial(checks.last_axis, "x", size=4, next_step="Give four.")
AXES = partial(checks.axes, "x", names="batch, height", next_step="Add one.")
POSITIVE = partial(checks.positive, "x")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (POSITIVE, [1, 1e-9, math.inf], [0, -1, 0.0, -1e-9, math.nan]),
        (AXIS, [(4,), (2, 3, 4), (0, 4)], [(), (3,), (4, 3), (4, 0)]),
        (AXES, [(2, 3)], [(2,), (2, 3, 4)]),
    ],
    ids=["positive", "last_axis", "axes"],
)
def test_what_passes_and_what_does_not(check, good, bad):
    def checked(value):
        return check(value) if check is POSITIVE else check(tensor=torch.zeros(value))

    for value in good:
        assert checked(value) is None
    for value in bad:
        with pytest.raises(ValueError) as caught:
            checked(value)
        told = rf"Argument `x` must .+, but is {re.escape(repr(value))}\. [A-Z].+\."
        assert re.fullmatch(told, str(caught.value))


def test_folder(tmp_path):
    assert checks.folder("data_dir", str(tmp_path), "Make it.") == tmp_path
    (tmp_path / "file").touch()
    for name, error in (("file", NotADirectoryError), ("nothing", FileNotFoundError)):
        with pytest.raises(error, match=f"`data_dir` must .* but is '{tmp_path / name}'"):
            checks.folder("data_dir", tmp_path / name, "Make it.")


def test_an_argument_is_named_as_its_caller_knows_it():
    with pytest.raises(FileNotFoundError) as caught, checks.renamed({"root": "data_dir"}):
        raise FileNotFoundError(2, checks.message("root", "be there", "root", "Make it."))
    assert caught.value.errno == 2
    assert caught.value.args[1] == "Argument `data_dir` must be there, but is 'root'. Make it."
    for other in (ValueError("root"), ValueError(checks.message("folder", "be `root`", 1, "Do."))):
        with pytest.raises(ValueError) as caught, checks.renamed({"root": "data_dir"}):
            raise other
        assert caught.value is other
