"""Writes, verifies, prunes, mirrors and restores the state that a run must not lose.

A `Store` holds the checkpoints of one training. The other functions seed the generators of Python, NumPy and
torch, and save and restore their states.
"""

from qnnkit.checkpoint.generators import own_generators, random_state, seed_all, set_random_state
from qnnkit.checkpoint.store import Store

__all__ = ["Store", "own_generators", "random_state", "seed_all", "set_random_state"]
