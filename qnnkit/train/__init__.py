"""One training loop, on Accelerate, for any model, task and loaders. It knows nothing quantum."""

from qnnkit.train.groups import Group, optimizer_of, trainable
from qnnkit.train.loop import Progress, evaluate, fit
from qnnkit.train.observer import Observer
from qnnkit.train.processes import PRECISIONS
from qnnkit.train.recompute import recomputing
from qnnkit.train.step import Stepper, autocast

__all__ = [
    "PRECISIONS",
    "Group",
    "Observer",
    "Progress",
    "Stepper",
    "autocast",
    "evaluate",
    "fit",
    "optimizer_of",
    "recomputing",
    "trainable",
]
