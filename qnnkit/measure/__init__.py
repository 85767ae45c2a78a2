"""Time and memory as measured, and remembered."""

from qnnkit.measure.busy import load, note
from qnnkit.measure.memory import peak, peak_on, reset_peak, resident
from qnnkit.measure.remembered import machine, once
from qnnkit.measure.timing import Spread, seconds, synchronize, threads

__all__ = [
    "Spread",
    "load",
    "machine",
    "note",
    "once",
    "peak",
    "peak_on",
    "reset_peak",
    "resident",
    "seconds",
    "synchronize",
    "threads",
]
