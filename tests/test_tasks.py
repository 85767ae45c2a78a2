"""Tasks: the loss written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit.tasks import Classification

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
