"""Checks: one sentence, and it names the argument, the rule, the value and the next step."""

import pytest

from qnnkit import checks


@pytest.mark.parametrize(("value", "nearest"), [("amplitud", "amplitude"), ("xyz", None), ("", None)])
def test_choice_and_the_nearest(value, nearest):
    choices = ("angle", "amplitude", "iqp")
    assert checks.choice("embedding", "iqp", choices) == "iqp"
    with pytest.raises(ValueError) as caught:
        checks.choice("embedding", value, choices)
    guess = f"Did you mean {nearest!r}? " if nearest else ""
    told = f"but is {value!r}. {guess}The choices are angle, amplitude, iqp."
    assert str(caught.value) == f"Argument `embedding` must be a known name, {told}"


def test_an_argument_is_named_as_its_caller_knows_it():
    with checks.renamed({"root": "data_dir"}), checks.renamed({"folder": "DST"}):
        told = checks.message("root", "be `root`", "root", "Make it.")
        assert told == "Argument `data_dir` must be `root`, but is 'root'. Make it."
        assert told.parts == ("data_dir", "be `root`", "root", "Make it."), "the reason as data"
    assert checks.message("root", "be there", 1, "Make it.").startswith("Argument `root` ")
