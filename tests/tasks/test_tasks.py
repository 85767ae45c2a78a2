"""Tasks: the loss written out in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit import data, plots, tasks, train
from qnnkit.settings import Settings
from qnnkit.stats import ACCURACY, LOSS, Score
from qnnkit.tasks import Classification, Own, Step, asked, calibration_error, complete
from tests.same import from_seed
from tests.toys import Batches, refused

LABELS = torch.tensor([0, 2, 1, 2])


def logits_of(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (3 * scores).to(dtype)


def cross_entropy(logits: torch.Tensor, smoothing: float) -> float:
    scores = logits.double().numpy()
    log_probs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    targets = (1 - smoothing) * np.eye(3)[LABELS] + smoothing / 3
    return float(-(targets * log_probs).sum(1).mean())


DTYPES = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("smoothing", "training"), [(0.0, True), (0.3, True), (0.3, False)])
def test_loss_and_accuracy(smoothing, training, dtype):
    """Equal to NumPy, in float32 or better; only the loss keeps a graph."""
    logits = logits_of(dtype).requires_grad_()
    step = Classification(smoothing)(nn.Identity().train(training), (logits, LABELS))
    expected = cross_entropy(logits.detach(), smoothing if training else 0.0)
    assert step.loss.dtype == max(dtype, torch.float32, key=lambda each: torch.finfo(each).bits)
    assert step.loss.item() == pytest.approx(expected, abs=1e-12 if dtype == torch.float64 else 1e-6)
    assert float(step.sums["loss"]) == pytest.approx(4 * expected, abs=1e-5) and step.count == 4
    assert step.loss.requires_grad and not any(value.requires_grad for value in step.sums.values())
    assert abs(cross_entropy(logits_of(), 0.3) - cross_entropy(logits_of(), 0.0)) > 0.1
    assert step.sums[Classification().monitor] == sum(logits[i].argmax() == LABELS[i] for i in range(4))


# --- scores on test images ---------------------------------------------------------------------------------


def test_macro_f1_counts_rare_classes_as_much_as_others():
    labels, outputs = torch.tensor([0] * 9 + [1]), torch.tensor([[1.0, 0.0]]).expand(10, 2)
    splits = SimpleNamespace(split=lambda name: {"test": SimpleNamespace(labels=labels)}[name])
    judged = Classification().judge(outputs, splits)
    assert judged["macro_f1"] == pytest.approx((18 / 19 + 0) / 2)
    assert judged["ece"] == pytest.approx(calibration_error(outputs.softmax(1), labels), abs=1e-6)


@pytest.mark.parametrize(
    ("confidence", "labels", "error", "n_bins"),
    [
        # 0.62 and 0.65 share the bin (9/15, 10/15], one of the two right; 0.9 is alone and right.
        ([0.62, 0.65, 0.90], [0, 1, 0], (abs(1 - 1.27) + abs(1 - 0.9)) / 3, 15),
        ([0.62, 0.65, 0.90], [0, 1, 0], abs(2 - 2.17) / 3, 1),
        # 0.6 is the upper end of the ninth of fifteen bins: it is in the bin of 0.55, not of 0.65.
        ([0.55, 0.6, 0.65], [1, 0, 0], (abs(1 - 1.15) + abs(1 - 0.65)) / 3, 15),
        ([1.0, 1.0], [1, 1], 1, 15), ([0.5, 0.5], [0, 1], 0, 15),  # all wrong; half certain, half right
    ],
)  # fmt: skip
def test_calibration_error_by_hand(confidence, labels, error, n_bins):
    right = torch.tensor(confidence, dtype=torch.float64)
    class_probs = torch.stack([right, 1 - right], dim=1)
    assert calibration_error(class_probs, torch.tensor(labels), n_bins) == pytest.approx(error, abs=1e-12)


# --- a user's task -----------------------------------------------------------------------------------------

POINTS = torch.linspace(-1, 1, 24)[:, None]
VALUES = 2 * POINTS[:, 0] - 0.5


class Regression:
    """Mean squares, with a given `monitor` and other reported numbers."""

    def __init__(self, monitor=None, **reported):
        self.reported = reported
        if monitor is not None:
            self.monitor = monitor

    def __call__(self, model, batch, **options):
        self.given, (inputs, values) = options, batch
        loss = (model(inputs)[:, 0] - values).square().mean()
        sums = {name: make(loss, len(values)) for name, make in self.reported.items()}
        return Step(loss, sums, values.isfinite().sum())  # a tensor, as a mask gives


def line():
    return from_seed(lambda: nn.Linear(1, 1))


def of_loss(loss, n):
    return loss.detach() * n


def fitted(task):
    """The progress of a short training."""
    train_batches = Batches(POINTS, VALUES, 8, shuffle=True)
    loaders = {"train": train_batches, "validation": Batches(POINTS[::2], VALUES[::2], 6, shuffle=False)}
    return train.fit(line(), complete(task), loaders, Settings(epochs=4, learning_rate=0.1))


def test_the_kits_tasks_are_unchanged_unless_they_watch_a_falling_number():
    kit = Classification(), tasks.Contrastive(), tasks.Language(), tasks.Music()
    assert all(complete(task) is task for task in (*kit, Own(Regression())))
    falling = complete(tasks.Language(monitor="loss"))
    assert (falling.monitor, falling.score.larger) == ("minus_loss", False)
    with refused("targets"):
        Classification()(line(), {"input_ids": LABELS, "labels": LABELS})


MONITORS = {None: False, "loss": False, "mean_error": False, "cross_entropy": False}
MONITORS |= {"r2": True, "top_5_accuracy": True}
"""Name -> whether more is better."""


@pytest.mark.parametrize(("monitor", "larger"), MONITORS.items())
def test_the_monitor_chooses_the_epoch_in_the_direction_of_its_name(monitor, larger):
    name, sign = monitor or "loss", 1 if larger else -1
    task = complete(Regression(monitor, **{name: of_loss}))
    assert (task.monitor, task.score.larger) == (name if larger else f"minus_{name}", larger)
    step, progress = task(line(), (POINTS, VALUES)), fitted(task)
    assert step.sums[task.monitor] == sign * step.sums[task.score.name] != 0
    scores = [sign * row[f"validation_{name}"] for row in progress.rows]
    assert scores[progress.best_epoch - 1] == max(scores) == progress.best_score[0]
    assert (progress.best_epoch == 1) == larger, "the loss falls, so if more is better, the first is best"


def test_a_number_of_unknown_direction_raises_an_error_until_the_score_says_it():
    for name in ("distance", "error_free", "accuracy_gap", "neg_loss", "1-accuracy", "entropy"):
        with refused("score"):
            Score(name, name)
    task = Regression("distance", distance=of_loss)
    with refused("score"):
        complete(task)
    task.score = Score("distance", "distance", "m", larger=False, criterion="")
    completed, progress = complete(task), fitted(task)
    assert (completed.score, completed.monitor, progress.best_epoch) == (task.score, "minus_distance", 4)


def test_a_loss_is_reported_even_if_the_task_names_none(monkeypatch):
    task = complete(Regression())
    step = task(line(), (POINTS, VALUES))
    assert float(step.sums["loss"]) == pytest.approx(len(POINTS) * step.loss.item())
    result = train.evaluate(line(), Regression(), Batches(POINTS, VALUES, 5, shuffle=False))
    assert result["loss"] == pytest.approx(step.loss.item()) and type(step.count) is int
    completed = complete(Regression(loss=lambda loss, n: 7.0, graph=lambda loss, n: loss * n))
    assert not completed(line(), (POINTS, VALUES)).sums["graph"].requires_grad
    assert float(completed(line(), (POINTS, VALUES)).sums["loss"]) == 7, "its own loss counts"
    completed.task.whole = True
    assert completed(line(), (POINTS, VALUES)) and completed.task.given == {"micro_batch": None}
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("processes", NotImplementedError):
        fitted(completed)


def test_a_score_watches_the_monitor():
    assert complete(Regression("accuracy", accuracy=of_loss)).score is ACCURACY
    task = Regression("minus_distance", minus_distance=of_loss)
    task.score = Score("r2", "R²", watched="minus_distance", criterion="")
    assert complete(task).monitor == "minus_distance"
    task.score = LOSS
    with refused("score", says="watch `minus_distance`, "):
        complete(task)


WRONG = {
    "no task": "accuracy",
    "a tensor": lambda model, batch: batch[1].mean(),
    "another number": Regression("r2"),
    "a vector": Regression("r2", r2=lambda loss, n: torch.zeros(n)),
    "a loss of many numbers": lambda model, batch: Step(model(batch[0])[:, 0], {}, len(batch[1])),
}


@pytest.mark.parametrize("task", WRONG.values(), ids=WRONG)
def test_a_task_that_returns_something_else(task):
    with refused("task"):
        complete(task)(line(), (POINTS, VALUES))


# --- figures of a task -------------------------------------------------------------------------------------


def test_a_task_without_figures_gets_those_that_its_data_allow():
    splits = data.arrays(Settings(), POINTS.expand(24, 2), VALUES)
    task = complete(Regression())
    first, counts = task.preview(splits)
    assert list(first.content) == ["inputs", "target"] and counts.content["samples"].sum() == 24
    net = from_seed(lambda: nn.Linear(2, 1))
    [worst] = asked(task.mistakes, net, splits, n=3, seed=0)
    losses = [task(net, batch).loss.item() for batch in splits.batches("test", 1, shuffle=False)]
    assert worst.content["loss"].tolist() == sorted(losses, reverse=True)[:3]
    digits = data.load("digits", train_fraction=0.1)
    assert [each.name for each in task.preview(digits)] == ["01_classes", "01_balance"]


def test_mistakes_of_a_classifier_by_hand(monkeypatch):
    """Counts by truth and answer, and the errors whose truth seemed least likely, worst first."""
    shares = torch.tensor([[7, 2, 1], [5, 4, 1], [1, 8, 1], [9, 1, 0], [3, 3, 4]]) / 10
    test = data.ImageSet(shares.log(), torch.tensor([0, 1, 1, 2, 2]), tuple("vwxyz"))
    splits = SimpleNamespace(test=test, classes=("a", "b", "c"))
    monkeypatch.setattr(plots, "confusion", lambda counts, names: counts.tolist())
    monkeypatch.setattr(plots, "labelled_images", lambda images, titles: titles)
    counts, worst = (shown.content for shown in Classification().mistakes(nn.Identity(), splits))
    assert counts == [[1, 0, 0], [1, 1, 0], [1, 0, 1]] and worst == ["c, not a\ny", "b, not a\nw"]
    assert Classification().mistakes(nn.Identity(), splits, n=1)[1].content == ["c, not a\ny"]
    with refused("n"):
        Classification().mistakes(nn.Identity(), splits, n=-1)
