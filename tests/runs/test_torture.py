"""Killed at random moments, trainings, chains and batches end in the numbers of undisturbed ones.

A few kills here; `make torture` has fifty of each kind.
"""

import random

import pytest

from tests import torture

KILLS = {"training": 3, "mirrored": 3, "chain": 1, "batch": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", torture.KINDS)
def test_killed_at_random_moments_it_ends_in_the_same_bits(tmp_path, kind):
    counts = torture.KINDS[kind](tmp_path, KILLS[kind], random.Random(1))
    assert counts["kills"] >= KILLS[kind]
