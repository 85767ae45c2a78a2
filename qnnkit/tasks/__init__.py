"""Tasks, one file each: the loss that trains a net, the metrics that judge it, and its predictions.

A task of your own is any callable (model, batch) -> `Step`; `Task` has the attributes that it may have.
"""

from qnnkit.tasks.classification import Classification, calibration_error
from qnnkit.tasks.contrastive import Contrastive
from qnnkit.tasks.language import Language, generate, perplexity
from qnnkit.tasks.music import Music, continue_piece
from qnnkit.tasks.own import Own, Refused, complete, usual
from qnnkit.tasks.saving import merge, save
from qnnkit.tasks.step import Shown, Step, Task, asked

__all__ = [
    "Classification", "Contrastive", "Language", "Music", "Own", "Refused", "Shown", "Step",
    "Task", "asked", "calibration_error", "complete", "continue_piece", "generate", "merge", "perplexity",
    "save", "usual",
]  # fmt: skip
