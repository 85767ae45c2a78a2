"""What a net is trained for: its loss and the numbers it is judged by, per kind of work."""

from qnnkit.tasks.classification import Classification, calibration_error, macro_f1
from qnnkit.tasks.contrastive import Contrastive
from qnnkit.tasks.language import Language, perplexity
from qnnkit.tasks.own import Own, Refused, complete
from qnnkit.tasks.own_loss import OwnLoss
from qnnkit.tasks.step import Step, Task

__all__ = [
    "Classification",
    "Contrastive",
    "Language",
    "Own",
    "OwnLoss",
    "Refused",
    "Step",
    "Task",
    "calibration_error",
    "complete",
    "macro_f1",
    "perplexity",
]
