"""One training loop for any model, task and loaders, with nothing specific to quantum circuits.

`fit` trains, `evaluate` computes metrics. `PRECISIONS` are the values of the setting `precision`.
"""

from qnnkit.train.evaluation import evaluate
from qnnkit.train.loop import fit
from qnnkit.train.optimizer import Group, optimizer_of, trainable
from qnnkit.train.out_of_memory import OutOfMemory
from qnnkit.train.progress import Progress
from qnnkit.train.recompute import recomputing
from qnnkit.train.stepper import PRECISIONS, Stepper

__all__ = [
    "PRECISIONS",
    "Group",
    "OutOfMemory",
    "Progress",
    "Stepper",
    "evaluate",
    "fit",
    "optimizer_of",
    "recomputing",
    "trainable",
]
