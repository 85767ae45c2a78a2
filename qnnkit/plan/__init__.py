"""Memory, time and money as predicted, before anything large is run."""

from qnnkit.plan.asked import Asked, asked, of_run
from qnnkit.plan.machines import Table, load
from qnnkit.plan.predict import free_memory, predict
from qnnkit.plan.prediction import HOST, PARTS, Prediction, Work
from qnnkit.plan.text import table
from qnnkit.plan.trace import Traced, trace
from qnnkit.plan.transformer import SIZES, of_transformer
from qnnkit.plan.whole import Plan, plan
from qnnkit.plan.words import parse_epochs
from qnnkit.plan.workload import Workload, of_recipe

__all__ = [
    "Asked",
    "HOST",
    "PARTS",
    "Plan",
    "SIZES",
    "Prediction",
    "Table",
    "Traced",
    "Work",
    "Workload",
    "asked",
    "free_memory",
    "load",
    "of_recipe",
    "of_run",
    "of_transformer",
    "parse_epochs",
    "plan",
    "predict",
    "table",
    "trace",
]
