"""What a training takes, measured here and predicted. Nothing measured is remembered."""

from qnnkit.measure import comparing, survey
from qnnkit.measure.clock import (
    Lap,
    Spread,
    Step,
    load,
    note,
    now,
    race,
    spread,
    synchronize,
    threads,
    winner,
)
from qnnkit.measure.device_figures import figures
from qnnkit.measure.held import peak, peak_on, reset_peak, resident
from qnnkit.measure.memory import trace
from qnnkit.measure.parts import operations, step_parts, strategies
from qnnkit.measure.placement import Placement, place
from qnnkit.measure.plan import Plan, plan
from qnnkit.measure.predict import Prediction, predict
from qnnkit.measure.workload import Workload, of_recipe, of_transformer, sizes, take

__all__ = [
    "Lap", "Placement", "Plan", "Prediction", "Spread", "Step", "Workload", "figures", "load", "note", "now",
    "of_recipe", "of_transformer", "operations", "peak", "peak_on", "place", "plan", "predict",
    "race", "comparing", "reset_peak", "resident", "sizes", "spread", "step_parts", "strategies",
    "survey", "synchronize", "take", "threads", "trace", "winner",
]  # fmt: skip
