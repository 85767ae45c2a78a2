"""The loss that a model of transformers computes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from qnnkit import checks
from qnnkit.stats import LOSS, Score
from qnnkit.tasks.language import perplexity
from qnnkit.tasks.own import OfData
from qnnkit.tasks.step import Step


@dataclass(frozen=True)
class OwnLoss(OfData):
    """The loss that a transformers model computes itself; reports `loss` and `minus_loss`.

    A batch is a dictionary of the model's arguments, `labels` among them where it wants them.

    Raises:
        ValueError: Samples are set against each other, and are to be computed in pieces: each would then have
            another loss.
    """

    together: bool = False
    """Whether samples are set against each other (CLIP), so that the model is asked for that loss."""
    monitor: str = "minus_loss"
    score: ClassVar[Score] = LOSS

    @property
    def whole(self) -> bool:
        return self.together

    def __call__(self, model: nn.Module, batch: dict[str, Tensor], micro_batch: int | None = None) -> Step:
        asked, count = {"return_loss": True} if self.together else {}, len(next(iter(batch.values())))
        if micro_batch is not None and micro_batch < count:
            rule = "be None for a loss of the model's own that sets samples against each other"
            step = "tasks.Contrastive computes it in pieces."
            raise ValueError(checks.message("micro_batch", rule, micro_batch, step))
        loss = model(**batch, **asked).loss
        total = count * loss.detach()
        return Step(loss, {"loss": total, "minus_loss": -total}, count)

    def judge(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity of a split from its mean loss, where that is one of tokens."""
        return {} if self.together else {"perplexity": perplexity(means["loss"])}
