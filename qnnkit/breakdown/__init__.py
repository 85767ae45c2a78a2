"""Where a training step's time goes, and what it would take by other strategies: all of it measured here."""

from qnnkit.breakdown.parts import PARTS, Part, step
from qnnkit.breakdown.table import OneByOne, Strategy, one_by_one, strategies

__all__ = ["PARTS", "Part", "step", "OneByOne", "Strategy", "one_by_one", "strategies"]
