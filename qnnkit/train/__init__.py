"""One training loop for any model, task and loaders. It knows nothing quantum."""

from qnnkit.train.evaluation import evaluate
from qnnkit.train.in_pieces import PRECISIONS, Stepper, autocast
from qnnkit.train.loop import fit
from qnnkit.train.optimizer import Group, optimizer_of, trainable
from qnnkit.train.out_of_memory import OutOfMemory
from qnnkit.train.progress import Moment, Observer, Progress
from qnnkit.train.recompute import recomputing

__all__ = [
    "PRECISIONS",
    "Group",
    "Moment",
    "Observer",
    "OutOfMemory",
    "Progress",
    "Stepper",
    "autocast",
    "evaluate",
    "fit",
    "optimizer_of",
    "recomputing",
    "trainable",
]
