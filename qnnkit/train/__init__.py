"""One training loop, on Accelerate, for any model, task and loaders. It knows nothing quantum."""

from qnnkit.train.loop import Group, Progress, evaluate, fit, optimizer_of, trainable
from qnnkit.train.processes import PRECISIONS

__all__ = ["PRECISIONS", "Group", "Progress", "evaluate", "fit", "optimizer_of", "trainable"]
