"""Memory, time and money as predicted, before anything large is run."""

from qnnkit.plan.predict import free_memory, predict
from qnnkit.plan.prediction import HOST, PARTS, Prediction, Work
from qnnkit.plan.trace import Traced, trace
from qnnkit.plan.transformer import SIZES, of_transformer
from qnnkit.plan.workload import Workload, of_recipe

__all__ = [
    "HOST",
    "PARTS",
    "SIZES",
    "Prediction",
    "Traced",
    "Work",
    "Workload",
    "free_memory",
    "of_recipe",
    "of_transformer",
    "predict",
    "trace",
]
