"""Trainings, chains and batches killed at random moments end with the numbers of undisturbed ones.

A few kills here; `make torture` has fifty of each kind.
"""

import os
import random

import pytest

from tests import torture

KILLS = {"training": 3, "mirrored": 3, "chain": 1, "batch": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", torture.KINDS)
def test_kills_at_random_moments_change_no_bit(tmp_path, kind):
    kills = int(os.environ.get("QNNKIT_KILLS", KILLS[kind]))
    counts = torture.KINDS[kind](tmp_path, kills, random.Random(1))
    assert counts["kills"] >= kills
