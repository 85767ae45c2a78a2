"""Classification of images or other samples: cross-entropy, and the metrics of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.data import augment
from qnnkit.data.splits import SPLITS
from qnnkit.layers import evaluating
from qnnkit.stats import ACCURACY, Score
from qnnkit.tasks import pictures
from qnnkit.tasks.own import Refused, first_samples, largest_losses
from qnnkit.tasks.step import Shown, Step

SHOWN = 3
"""Number of images of each class in a preview."""


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of logits against labels; reports `loss` and `accuracy`.

    A batch is (inputs, labels); the model returns logits of shape (batch, n_classes).

    Args:
        label_smoothing: Share of each label that is spread over all classes, 0 to 1, in training only.
        monitor: The reported number that chooses the best epoch on the validation split.
        augment: Transformation of the images, in training only.

    Raises:
        Refused: A ValueError, in a call: the targets are not classes, integers of shape (batch,).
    """

    label_smoothing: float = 0.0
    monitor: str = "accuracy"
    score: ClassVar[Score] = ACCURACY
    augment: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, settings: Any) -> Classification:
        """Returns the task with the options of settings derived from `data.Images`; others have none."""
        changes = {"none": None, "affine": augment.affine}
        change = changes[settings.of_kit("augmentation", "none")]
        return cls(settings.of_kit("label_smoothing", 0.0), augment=change)

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Step:
        """Returns the step of a batch; smooths and augments only if the model is in training mode."""
        images, labels = batch
        if isinstance(labels, str) or labels.ndim != 1 or labels.is_floating_point():
            step = "Give targets such as one_hot.argmax(1) or column[:, 0], or write a task in the recipe."
            value = labels if isinstance(labels, str) else f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise Refused(checks.message("targets", "be classes: integers, one per sample", value, step))
        if self.augment is not None and model.training:
            images = self.augment(images)
        logits = model(images)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = self.label_smoothing if model.training else 0.0
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        correct = (logits.argmax(-1) == labels).sum()
        return Step(loss, {"loss": loss.detach() * len(labels), "accuracy": correct}, len(labels))

    def judge(self, outputs: Tensor, splits: Any, split: str = "test") -> dict[str, float]:
        """Returns metrics of the logits of a split, of shape (n, n_classes).

        Returns:
            `macro_f1`, in which rare classes count as much as others, and `ece`, see `calibration_error`.
        """
        from sklearn.metrics import f1_score

        labels, predicted = splits.split(split).labels, outputs.argmax(-1)
        f1 = f1_score(labels.numpy(), predicted.numpy(), average="macro", zero_division=0)  # pyright: ignore
        return {"macro_f1": float(f1), "ece": calibration_error(outputs.double().softmax(-1), labels)}

    def preview(self, splits: Any) -> list[Shown]:
        """Shows some training samples of each class, and the number of samples in each split."""
        import pandas as pd

        from qnnkit import plots

        train, names = splits.train, splits.classes
        if not hasattr(train, "images"):
            return first_samples(splits)
        by_class = pd.Series(train.labels.numpy()).sort_values(kind="stable")
        first = by_class.groupby(by_class).head(SHOWN)
        figure = plots.labelled_images(train.images.numpy()[first.index], [names[label] for label in first])
        counts = {name: splits.split(name).labels.bincount(minlength=len(names)).tolist() for name in SPLITS}
        table = pd.DataFrame(counts, index=list(names))
        shown = Shown(figure, "01_classes", "Images of each class", "The first of the training split.")
        return [shown, Shown(table, "01_balance", "Images of each class and split")]

    def mistakes(self, net: nn.Module, splits: Any, n: int = 12, seen: Any = None) -> list[Shown]:
        """Shows the confusion matrix of the test split, and the samples whose true class was least likely.

        Args:
            net: A trained net.
            splits: The data.
            n: Number of samples to show.
            seen: Splits with the outputs of the net's frozen part in place of images; None: `splits`.
        """
        from sklearn.metrics import confusion_matrix

        from qnnkit import plots

        checks.positive("n", n, "Use 12, or 0 for none.", above=-1)
        test, given, labels = splits.test, (seen or splits).test, splits.test.labels
        with evaluating(net):
            logits = torch.cat([net(some).float() for some in given.pair[0].split(256)])
        predicted, names = logits.argmax(1), splits.classes or tuple(map(str, range(logits.shape[1])))
        counted = confusion_matrix(labels, predicted, labels=range(logits.shape[1]))
        caption = "Test samples, first seed. Rows are true classes; counts off the diagonal are mistakes."
        shown = [Shown(plots.confusion(counted, names), "05_confusion", "Confusion matrix", caption)]
        if not hasattr(test, "images"):
            return shown + largest_losses(self, net, splits, n)
        wrong = (predicted != labels).nonzero().flatten()
        of_truth = logits.softmax(1)[wrong, labels[wrong]]
        if not (worst := wrong[of_truth.argsort(stable=True)][:n].tolist()):
            return shown
        titles = [f"{names[labels[i]]}, not {names[predicted[i]]}\n{test.sources[i]}" for i in worst]
        figure = plots.labelled_images(test.images.numpy()[worst], titles)
        return [*shown, Shown(figure, "06_worst", "Most wrong", "True class, predicted class, and file.")]

    def predict(self, net: nn.Module, inputs: Sequence[Any], about: Any) -> list[dict[str, Any]]:
        """Returns the class and probabilities of each image or array, or the outputs if there are no classes.

        Args:
            net: A trained net.
            inputs: Image files, pixels, .npy files or arrays, of one sample or several.
            about: Description of the training data stored in the run.
        """
        rows = []
        for given in inputs:
            if "image_size" in about.sizes:
                values, notes = pictures.pixels(given, about)
                single, more = True, {"notes": notes}
            else:
                (values, single), more = pictures.array(given, about), {}
            outputs = net(values)
            has_classes = about.classes and outputs.shape[1:] == (len(about.classes),)
            each = [_of_logits(x, about.classes) if has_classes else {"output": x.tolist()} for x in outputs]
            result = each[0] if single else {"output": [x.get("output", x) for x in each]}
            rows.append({"input": pictures.named(given), **result, **more})
        return rows


def _of_logits(logits: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Returns class and probabilities of one sample; a net's own probabilities stay unchanged."""
    values = logits.double()
    shares = values if (values >= 0).all() and abs(values.sum() - 1) < 1e-5 else values.softmax(0)
    probabilities = dict(zip(classes, shares.tolist(), strict=True))
    return {"class": max(probabilities, key=lambda name: probabilities[name]), "probabilities": probabilities}


def calibration_error(class_probs: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error: the mean gap between a net's confidence and its accuracy.

    Images are grouped by confidence (the largest class probability) into bins of equal width; the error is
    the mean over images of |accuracy - mean confidence| of their bin, from 0 to 1.

    Args:
        class_probs: Class probabilities of shape (n, n_classes).
        labels: True classes of shape (n,).
        n_bins: Number of bins over (0, 1], each including its upper end.

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
