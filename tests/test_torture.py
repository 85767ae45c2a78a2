"""Killed at random moments, a training and the notebook chain end in the numbers of an undisturbed one.

A few kills here; `make torture` has many, and a batch with its workers and scheduler among them.
"""

import random

import pytest

from tests import torture


@pytest.mark.slow
def test_a_training_that_is_killed(tmp_path):
    found = torture.torture_training(tmp_path, 3, random.Random(1))
    assert found["kills"] >= 3


@pytest.mark.slow
def test_a_mirrored_training_whose_machine_is_lost(tmp_path):
    found = torture.torture_mirrored(tmp_path, 3, random.Random(3))
    assert found["kills"] >= 3


@pytest.mark.slow
def test_a_chain_that_is_killed(tmp_path):
    found = torture.torture_chain(tmp_path, 1, random.Random(2))
    assert found["kills"] >= 1


def test_the_comparison_sees_one_bit(tmp_path):
    import torch

    one = {"a": [torch.zeros(3), 1.0], "b": {"c": None}}
    other = {"a": [torch.zeros(3), 1.0], "b": {"c": None}}
    assert torture.same(one, other)
    other["a"][0][1] = 1e-45
    assert not torture.same(one, other) and not torture.same(one, {"a": one["a"]})
