"""Images into classes: cross-entropy, and the numbers that a classifier is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit.data import augment
from qnnkit.stats import ACCURACY, Score
from qnnkit.tasks.step import Step


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of logits against labels; reports `loss` and `accuracy`.

    A batch is (images, labels); the model gives logits of shape (batch, n_classes).
    """

    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes, in training only."""
    monitor: str = "accuracy"
    score: ClassVar[Score] = ACCURACY
    augment: Callable[[Tensor], Tensor] | None = None
    """What is done to the images first, in training only."""

    @classmethod
    def of(cls, settings: Any) -> Classification:
        """As settings derived from `data.Images` ask for it."""
        changes = {"none": None, "affine": augment.affine}
        return cls(settings.label_smoothing, augment=changes[settings.augmentation])

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Step:
        images, labels = batch
        if self.augment is not None and model.training:
            images = self.augment(images)
        logits = model(images)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = self.label_smoothing if model.training else 0.0
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        correct = (logits.argmax(-1) == labels).sum()
        return Step(loss, {"loss": loss.detach() * len(labels), "accuracy": correct}, len(labels))

    def judge(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """What all logits, of shape (n, n_classes), are worth beside the labels, of shape (n,).

        Returns:
            `accuracy`, `loss` (negative log-likelihood, without smoothing), `macro_f1` and `ece`.
        """
        logits = logits.double()
        return {
            "accuracy": float((logits.argmax(-1) == labels).double().mean()),
            "loss": float(nn.functional.cross_entropy(logits, labels)),
            "macro_f1": macro_f1(logits.argmax(-1), labels),
            "ece": calibration_error(logits.softmax(-1), labels),
        }


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Mean over classes of F1 = 2 TP / (2 TP + FP + FN), so that rare classes count as much as others.

    Classes are those that occur among the labels or the predictions, as in scikit-learn's `f1_score`.

    Args:
        predicted: Classes of shape (n,).
        labels: True classes of shape (n,).

    Example:
        >>> macro_f1(torch.tensor([0, 1]), torch.tensor([0, 0]))  # 2/3 for the first class, 0 for the other
        0.3333333333333333
    """
    n_classes = int(torch.maximum(predicted.max(), labels.max())) + 1
    right = torch.bincount(labels[predicted == labels], minlength=n_classes).double()
    both = torch.bincount(predicted, minlength=n_classes) + torch.bincount(labels, minlength=n_classes)
    occurs = both > 0
    return float((2 * right[occurs] / both[occurs]).mean())


def calibration_error(class_probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error: how far a net's confidence is from how often it is right.

    The images are sorted by confidence (the largest class probability) into bins of equal width; the error is
    the mean over images of |accuracy - mean confidence| of their bin.

    Args:
        class_probs: Of shape (n, n_classes).
        labels: True classes of shape (n,).
        n_bins: Bins over (0, 1], each with its upper end.

    Example:
        >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 1, 1]))
        0.25

    Reference:
        Guo et al. 2017, arXiv:1706.04599, equation 3.
    """
    confidence, predicted = class_probs.double().max(dim=-1)
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64, device=confidence.device)
    which = torch.bucketize(confidence, edges[1:-1])
    gaps = (predicted == labels).double() - confidence
    return float(torch.bincount(which, weights=gaps, minlength=n_bins).abs().sum() / len(labels))
