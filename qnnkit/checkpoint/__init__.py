"""Writes, verifies, prunes, mirrors and restores the state that a run must not lose."""

from qnnkit.checkpoint.generators import own_generators, random_state, seed_all, set_random_state
from qnnkit.checkpoint.store import Store

__all__ = ["Store", "own_generators", "random_state", "seed_all", "set_random_state"]
