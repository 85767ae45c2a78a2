"""Tasks: the loss written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit.tasks import Classification, calibration_error, macro_f1

LABELS = torch.tensor([0, 2, 1, 2])


def logits_of(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (3 * scores).to(dtype)


def cross_entropy(logits: torch.Tensor, smoothing: float) -> float:
    scores = logits.double().numpy()
    log_probs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    targets = (1 - smoothing) * np.eye(3)[LABELS] + smoothing / 3
    return float(-(targets * log_probs).sum(1).mean())


@pytest.mark.parametrize(("smoothing", "training"), [(0.0, True), (0.3, True), (0.3, False)])
def test_loss(smoothing, training):
    step = Classification(smoothing)(nn.Identity().train(training), (logits_of(), LABELS))
    expected = cross_entropy(logits_of(), smoothing if training else 0.0)
    assert float(step.loss) == pytest.approx(expected, abs=1e-12)
    assert float(step.sums["loss"]) == pytest.approx(4 * expected, abs=1e-12)
    assert abs(cross_entropy(logits_of(), 0.3) - cross_entropy(logits_of(), 0.0)) > 0.1


def test_accuracy_counts_what_is_right():
    step = Classification()(nn.Identity(), (logits_of(), LABELS))
    assert int(step.sums["accuracy"]) == int((logits_of().argmax(1) == LABELS).sum())
    assert int(Classification()(nn.Identity(), (10.0 * torch.eye(3)[LABELS], LABELS)).sums["accuracy"]) == 4
    assert int(Classification()(nn.Identity(), (-10.0 * torch.eye(3)[LABELS], LABELS)).sums["accuracy"]) == 0
    assert step.count == 4 and Classification().monitor in step.sums


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_precision(dtype, computed):
    step = Classification()(nn.Identity(), (logits_of(dtype), LABELS))
    assert step.loss.dtype == computed
    assert float(step.loss) == pytest.approx(cross_entropy(logits_of(dtype), 0.0), abs=1e-6)


def test_only_the_loss_holds_a_graph():
    logits = logits_of().requires_grad_()
    step = Classification()(nn.Identity(), (logits, LABELS))
    assert step.loss.requires_grad and not any(value.requires_grad for value in step.sums.values())
    step.loss.backward()
    expected = (logits.detach().softmax(1) - torch.eye(3, dtype=torch.float64)[LABELS]) / 4
    torch.testing.assert_close(logits.grad, expected)


# --- what the test images say ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "n_classes"), [(1, 2), (5, 10), (40, 3), (500, 28)])
def test_macro_f1_is_that_of_scikit_learn(n, n_classes):
    from sklearn.metrics import f1_score

    generator = torch.Generator().manual_seed(n)
    labels = torch.randint(n_classes, (n,), generator=generator)
    wrong = torch.rand(n, generator=generator) < 0.3
    predicted = torch.where(wrong, torch.randint(n_classes, (n,), generator=generator), labels)
    expected = f1_score(labels, predicted, average="macro", zero_division=0)
    assert macro_f1(predicted, labels) == pytest.approx(expected, abs=1e-12)


def test_macro_f1_counts_rare_classes_as_much_as_others():
    labels = torch.tensor([0] * 9 + [1])
    assert macro_f1(torch.zeros(10, dtype=torch.int64), labels) == pytest.approx((18 / 19 + 0) / 2)


def test_calibration_error_by_hand():
    """0.62 and 0.65 share the bin (9/15, 10/15], one of the two right; 0.9 stands alone, and is right."""
    confidence = torch.tensor([0.62, 0.65, 0.90], dtype=torch.float64)
    class_probs = torch.stack([confidence, 1 - confidence], dim=1)
    error = calibration_error(class_probs, torch.tensor([0, 1, 0]))
    assert error == pytest.approx((abs(1 - 1.27) + abs(1 - 0.9)) / 3, abs=1e-12)
    coarse = calibration_error(class_probs, torch.tensor([0, 1, 0]), n_bins=1)
    assert coarse == pytest.approx(abs(2 - 2.17) / 3, abs=1e-12)


def test_calibration_error_of_nets_that_know_and_that_only_think_so():
    labels = torch.arange(10)
    sure = torch.eye(10)
    assert calibration_error(sure, labels) == 0
    assert calibration_error(sure, (labels + 1) % 10) == 1
    even = torch.full((10, 10), 0.1)
    assert calibration_error(even, labels) == pytest.approx(0, abs=1e-7), "a tenth sure, a tenth right"


def test_the_upper_end_belongs_to_a_bin():
    """0.6 is the upper end of the ninth of fifteen bins: it stands with 0.55, not with 0.65."""
    confidence = torch.tensor([0.55, 0.6, 0.65], dtype=torch.float64)
    class_probs = torch.stack([confidence, 1 - confidence], dim=1)
    error = calibration_error(class_probs, torch.tensor([1, 0, 0]))
    assert error == pytest.approx((abs(1 - 1.15) + abs(1 - 0.65)) / 3, abs=1e-12)


def test_judge_agrees_with_the_loss_that_is_trained():
    task, logits = Classification(label_smoothing=0.3), logits_of()
    found = task.judge(logits, LABELS)
    step = task(nn.Identity().eval(), (logits, LABELS))
    assert found["loss"] == pytest.approx(float(step.loss), abs=1e-12), "smoothed"
    assert found["accuracy"] == pytest.approx(int(step.sums["accuracy"]) / 4)
    assert found["macro_f1"] == macro_f1(logits.argmax(1), LABELS)
    assert found["ece"] == pytest.approx(calibration_error(logits.softmax(1), LABELS), abs=1e-12)
    assert found.keys() == {"accuracy", "loss", "macro_f1", "ece"}
