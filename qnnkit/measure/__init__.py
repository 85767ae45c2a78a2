"""Time and memory of a training, measured here and predicted. No measurement is stored.

A `Workload` describes a training, such as `of_recipe(settings, splits)`. `plan` and `predict` estimate before
it begins, `place` times steps on each device, `step_parts` the parts of a step, and `race` any functions.
Times are in seconds, memory in bytes, prices in US dollars per hour.
"""

from qnnkit.measure import survey
from qnnkit.measure.clock import Lap, Step, load, note, now, race, repeated, threads, winner
from qnnkit.measure.figures import figures
from qnnkit.measure.held import peak, peak_on, reset_peak, resident
from qnnkit.measure.memory import trace
from qnnkit.measure.parts import changed_step, step_parts
from qnnkit.measure.placement import Placement, place
from qnnkit.measure.plan import Plan, plan
from qnnkit.measure.predict import Prediction, predict
from qnnkit.measure.workload import Workload, of_recipe

__all__ = [
    "Lap", "Placement", "Plan", "Prediction", "Step", "Workload", "changed_step", "figures", "load", "note",
    "now", "of_recipe", "peak", "peak_on", "place", "plan", "predict", "race", "repeated", "reset_peak",
    "resident", "step_parts", "survey", "threads", "trace", "winner",
]  # fmt: skip
