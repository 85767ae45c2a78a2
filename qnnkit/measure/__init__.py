"""Time and memory as measured here. Nothing is remembered: a busy machine's times would stay."""

from qnnkit.measure import reading, survey
from qnnkit.measure.clock import (
    Lap,
    Spread,
    Step,
    load,
    note,
    now,
    race,
    seconds,
    spread,
    synchronize,
    threads,
    winner,
)
from qnnkit.measure.device_figures import figures
from qnnkit.measure.held import peak, peak_on, reset_peak, resident
from qnnkit.measure.parts import one_by_one, operations, step_parts, strategies
from qnnkit.measure.placement import Placement, place

__all__ = [
    "Lap", "Placement", "Spread", "Step", "figures", "load", "note", "now", "one_by_one", "operations",
    "peak", "peak_on", "place", "race", "reading", "reset_peak", "resident", "seconds", "spread",
    "step_parts", "strategies", "survey", "synchronize", "threads", "winner",
]  # fmt: skip
