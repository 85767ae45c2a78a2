"""The loss that a model of transformers computes itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from qnnkit.stats import LOSS, Score
from qnnkit.tasks.step import Step


@dataclass(frozen=True)
class OwnLoss:
    """The loss that a transformers model computes itself; reports `loss` and `minus_loss`.

    A batch is a dictionary of the model's arguments, `labels` among them where it wants them.
    """

    together: bool = False
    """Whether samples are set against each other (CLIP), so that the model is asked for that loss."""
    monitor: str = "minus_loss"
    score: ClassVar[Score] = LOSS

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Step:
        asked = {"return_loss": True} if self.together else {}
        loss, count = model(**batch, **asked).loss, len(next(iter(batch.values())))
        total = count * loss.detach()
        return Step(loss, {"loss": total, "minus_loss": -total}, count)

    def judge(self, outputs: Any, part: Any) -> dict[str, float]:
        """Nothing: what all outputs together are worth, the kind of work says."""
        return {}
