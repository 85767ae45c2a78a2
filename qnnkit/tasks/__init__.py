"""What a net is trained for: its loss and the numbers it is judged by, per kind of work."""

from qnnkit.stats import ACCURACY, LOSS, RECALL, Score
from qnnkit.tasks.classification import Classification, calibration_error, macro_f1
from qnnkit.tasks.contrastive import Contrastive
from qnnkit.tasks.language import Language, perplexity
from qnnkit.tasks.own_loss import OwnLoss
from qnnkit.tasks.step import Step, Task

SCORES: dict[str, Score] = {"images": ACCURACY, "captions": RECALL, "tokens": LOSS}
"""Kind of data -> what its nets are compared by."""

__all__ = [
    "SCORES",
    "Classification",
    "Contrastive",
    "Language",
    "OwnLoss",
    "Step",
    "Task",
    "calibration_error",
    "macro_f1",
    "perplexity",
]
