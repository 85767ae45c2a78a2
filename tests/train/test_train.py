"""qnnkit.train: one loop for any model, and every option has its effect."""

import inspect
import json
import logging
import math
import os
import signal
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qnnkit import train
from qnnkit.checkpoint import Store
from qnnkit.settings import Settings
from qnnkit.tasks import Classification, Step
from qnnkit.workspace import append_line
from tests import forked
from tests.acted import read_lines
from tests.same import At, from_seed, same, weights
from tests.toys import Batches, linear, refused

SAME_SUM = 1e-12  # float64: the same numbers added in another order
SAME_STEP = 1e-6  # float32: a step computed by hand
TASK = Classification()
FIT = set(inspect.signature(train.fit).parameters)


def net(seed=0, dropout=0.0, dtype=torch.float32):
    parts = (nn.Linear, 2, 8), (nn.Tanh,), (nn.Dropout, dropout), (nn.Linear, 8, 2)
    return from_seed(lambda: nn.Sequential(*(kind(*given) for kind, *given in parts)).to(dtype), seed)


def clouds(n, seed=0, dtype=torch.float32):
    """Two clouds of points that a line can separate: features of shape (n, 2), labels of shape (n,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    noise = torch.rand(n, 2, generator=generator, dtype=torch.float64) - 0.5
    return (noise + 2 * labels[:, None] - 1).to(dtype), labels


def loaders(n=96, batch_size=16, shuffle=False, dtype=torch.float32):
    train, validation = clouds(n, 0, dtype), clouds(32, 1, dtype)
    return {
        "train": Batches(*train, batch_size, shuffle=shuffle),
        "validation": Batches(*validation, batch_size, shuffle=False),
    }


class Noisy(TensorDataset):
    """Points that differ at every load."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point + 0.1 * torch.rand(2), label


KINDS = "of the kit", "with a generator", "plain"
"""Kinds of loaders; all except the first are torch's, with random order and samples."""


def shuffled(kind, n, batch_size, dataset=Noisy):
    data = loaders(n, shuffle=True)
    if kind != KINDS[0]:
        generator = torch.Generator() if kind == KINDS[1] else None
        data["train"] = DataLoader(dataset(*clouds(n)), batch_size, shuffle=True, generator=generator)
    return data


def fit(model, task=TASK, data=None, **given):
    """Calls `train.fit`; names in `given` that are no arguments of it are settings."""
    options = {name: given.pop(name) for name in given.keys() & FIT}
    return train.fit(model, task, data or loaders(), Settings(**given), **options)


def timeless(rows):
    return [row | {"seconds": 0} for row in rows]


@dataclass
class Scripted:
    """Trains like `Classification`, but with a given result for each validation."""

    scores: list[float]
    losses: list[float] = field(default_factory=lambda: [0.0] * 5)
    monitor: str = "accuracy"
    seen: list[int] = field(default_factory=list)

    def __call__(self, model, batch):
        step = TASK(model, batch)
        if model.training:  # a batch may leave a metric unknown
            return Step(step.loss, step.sums | {"odd": torch.tensor(math.nan)}, step.count)
        self.seen.append(step.count)
        place = (sum(self.seen) - 1) // 32  # `loaders` validates on 32 samples
        metrics = {"loss": self.losses[place], "accuracy": self.scores[place]}
        sums = {name: torch.tensor(step.count * value) for name, value in metrics.items()}
        return Step(step.loss, sums, step.count)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


# --- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_net_learns_linearly_separable_points(optimizer):
    model, rows = net(), []
    before = train.evaluate(model, TASK, loaders()["validation"])
    settings = {"epochs": 8, "learning_rate": 0.05, "optimizer": optimizer, "log": rows.append}
    progress = fit(model, data=loaders(shuffle=True), **settings)
    after = train.evaluate(model, TASK, loaders()["validation"])
    assert after["accuracy"] == 1 and after["loss"] < before["loss"] / 4
    assert [row["epoch"] for row in rows] == list(range(1, 9)) and progress.rows == rows
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert progress.best_score[0] == 1 and progress.updates == 8 * 6
    json.dumps(rows, allow_nan=False)  # every row can be written as JSON


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_same_seed_gives_the_same_bits(kind):
    """Also with a plain loader that shuffles; each epoch has its own order."""

    def trained(seed):
        model, data, orders = net(dropout=0.5), shuffled(kind, 96, 96, TensorDataset), []
        model.register_forward_pre_hook(lambda m, given: orders.append(str(given)) if m.training else None)
        fit(model, data=data, epochs=3, seed=seed)
        assert len(orders) == len(set(orders)) == 3 * len(data["train"])
        return weights(model)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = trained(1)
        torch.rand(3)  # earlier random draws do not matter
        assert same(first, trained(1)) and not same(first, trained(2))


@pytest.mark.parametrize(("batch_size", "micro_batch"), [(1, None), (5, None), (32, None), (32, 5)])
def test_evaluate_is_a_mean_over_samples_for_any_batches(batch_size, micro_batch):
    """It leaves the global generators unchanged, from which a plain loader draws."""
    points, labels = clouds(32, 1)
    model = net(dropout=0.5).train()
    loader = DataLoader(TensorDataset(points, labels), batch_size)
    result = train.evaluate(model, TASK, loader, micro_batch=micro_batch)
    logits = model.eval()(points).detach()
    assert result["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=SAME_STEP)
    assert result["accuracy"] == (logits.argmax(1) == labels).float().mean().item()


# --- steps -------------------------------------------------------------------------------------------------

ONE_STEP = {"epochs": 1, "optimizer": "sgd", "learning_rate": 1.0, "schedule": "constant"}


@pytest.mark.parametrize(("n", "micro_batch"), [(64, 16), (64, 12), (80, 1), (91, 16), (91, 12)])
def test_a_batch_in_pieces_equals_the_whole_batch(n, micro_batch):
    """Also with unequal pieces: the last batch of 91 samples has 27."""

    def trained(micro_batch=None):
        model, sizes = net(dtype=torch.float64), []
        model.register_forward_pre_hook(lambda module, settings: sizes.append(len(settings[0])))
        settings = ONE_STEP | {"learning_rate": 0.1, "epochs": 2, "micro_batch": micro_batch}
        progress = fit(model, data=loaders(n, 32, dtype=torch.float64), **settings)
        return weights(model), progress, max(sizes)

    whole, straight, _ = trained()
    pieces, progress, most = trained(micro_batch)
    assert progress.updates == straight.updates == 2 * math.ceil(n / 32) and most <= micro_batch
    assert progress.best_score == pytest.approx(straight.best_score, abs=SAME_SUM)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=SAME_SUM)


def test_a_single_step_in_pieces_equals_that_of_the_whole_batch():
    """As used for timing and planning."""
    [batch] = loaders(64, 64, dtype=torch.float64)["train"]
    models = {micro_batch: net(dtype=torch.float64) for micro_batch in (None, 16)}
    for micro_batch, model in models.items():
        train.Stepper(model, TASK, Settings(**ONE_STEP, micro_batch=micro_batch))(batch)
    torch.testing.assert_close(*map(weights, models.values()), rtol=0, atol=SAME_SUM)


def groups(model, **first):
    """The two linear layers as two groups; keywords set options of the first."""
    return [
        train.Group("first", list(model[0].parameters()), **{"learning_rate": 1.0} | first),
        train.Group("second", list(model[3].parameters()), learning_rate=1.0),
    ]


@pytest.mark.parametrize(
    ("first", "factor", "decay"),
    [
        ({}, 1, 0), ({"clip_norm": 1e3}, 1, 0), ({"clip_norm": 1e-3}, None, 0),
        ({"learning_rate": 0.01}, 0.01, 0), ({"learning_rate": 5.0}, 5, 0), ({"weight_decay": 0.5}, 1, 0.5),
        ({"weight_decay": 0.5}, 0, 0),  # a frozen group does not change
    ],
)  # fmt: skip
def test_one_step_follows_the_gradient_and_options_act_only_on_their_group(first, factor, decay):
    """Logged norms are those before clipping."""
    model = net()
    points, labels = clouds(96)
    nn.functional.cross_entropy(model(points), labels).backward()  # old gradients of the caller are not used
    start, slope = weights(model), {name: value.grad.clone() for name, value in model.named_parameters()}
    before = {i: math.hypot(*(float(g.norm()) for name, g in slope.items() if name[0] == i)) for i in "03"}
    model[0].requires_grad_(factor != 0)
    rows = fit(model, data=loaders(batch_size=96), groups=groups(model, **first), **ONE_STEP).rows
    factor = first["clip_norm"] / before["0"] if factor is None else factor
    for name, value in weights(model).items():
        on_first = name[0] == "0"
        moved = (factor if on_first else 1) * slope[name] + decay * on_first * start[name]
        torch.testing.assert_close(value, start[name] - moved, rtol=0, atol=SAME_STEP)
    assert rows[0].get("gradient_norm_first") == (pytest.approx(before["0"], rel=1e-5) if factor else None)
    assert rows[0]["gradient_norm_second"] == pytest.approx(before["3"], rel=1e-5)
    assert rows[0]["learning_rate"] == first.get("learning_rate", 1.0)


COSINE = [1, 0.853553, 0.5, 0.146447]


@pytest.mark.parametrize(
    ("schedule", "warmup_epochs", "factors"),
    [
        ("constant", 0, [1, 1, 1, 1]), ("linear", 0, [1, 0.75, 0.5, 0.25]), ("cosine", 0, COSINE),
        ("constant", 2, [1 / 3, 2 / 3, 1, 1]), ("linear", 2, [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ("cosine", 2, [1 / 3, 2 / 3, *COSINE]), ("cosine", 9, [0.1, 0.2]),
    ],
)  # fmt: skip
def test_the_schedule_by_hand(schedule, warmup_epochs, factors):
    """With one batch per epoch."""
    given = {"schedule": schedule, "warmup_epochs": warmup_epochs, "learning_rate": 0.5, "optimizer": "sgd"}
    rows = fit(net(), data=loaders(n=16), epochs=len(factors), **given).rows
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.5 * each for each in factors], abs=1e-6)


def test_the_schedule_within_an_epoch(tmp_path):
    """The learning rate falls between updates, also when a training resumes with other batch sizes."""
    given, first = {"learning_rate": 1e-3, "schedule": "linear", "warmup_epochs": 0.5, "folder": tmp_path}, 1
    for batch_size, steps, epochs in ((16, 6, 2), (32, 3, 6)):
        rows = fit(net(), data=loaders(batch_size=batch_size), epochs=epochs, **given).rows[first - 1 :]
        done = [epoch - 1 / steps for epoch in range(first, epochs + 1)]  # before the last update of each
        expected = [1e-3 * (1 - (place - 0.5) / (epochs - 0.5)) for place in done]
        assert [row["learning_rate"] for row in rows] == pytest.approx(expected, rel=1e-9)
        first = epochs + 1


# --- stopping, and saved checkpoints -----------------------------------------------------------------------

LATE, DRAW, NONE = [0.1, 0.5, 0.4, 0.4, 0.9], [0.5] * 5, [0.0] * 5


@pytest.mark.parametrize("kept", ["in memory", "in a folder"])
@pytest.mark.parametrize(
    ("scores", "losses", "patience", "epochs", "best"),
    [
        (LATE, NONE, 2, 4, 2), (LATE, NONE, 3, 5, 5), (LATE, NONE, 0, 5, 5),
        ([0.9, 0.1, 0.2, 0.3, 0.4], NONE, 1, 2, 1),
        (DRAW, [3.0, 2.0, 1.0, 2.0, 1.0], 0, 5, 3), (DRAW, NONE, 0, 5, 1),  # a tie in both is no improvement
    ],
)  # fmt: skip
def test_patience_and_the_best_epoch(tmp_path, kept, scores, losses, patience, epochs, best):
    """For equal scores the smaller loss is better."""
    model, after, folder = net(), [], tmp_path if kept == "in a folder" else None
    settings = {"folder": folder, "log": lambda row: after.append(weights(model))}
    progress = fit(model, Scripted(scores, losses), epochs=5, patience=patience, **settings)
    assert (progress.epoch, progress.best_epoch) == (epochs, best)
    assert [row["validation_accuracy"] for row in progress.rows] == pytest.approx(scores[:epochs])
    assert [same(weights(model), each) for each in after] == [n == best for n in range(1, epochs + 1)]
    assert [row["best"] for row in progress.rows][best - 1 :] == [True] + [False] * (epochs - best)
    if folder:
        saved = {int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")}
        wanted = {best, epochs - 1, epochs}  # the best and the last two
        assert wanted <= saved and len(saved) <= len(wanted) + 1  # and the previous best
        other = net(seed=1)  # nothing is left to train
        assert fit(other, Scripted([]), epochs=5, patience=patience, folder=folder) == progress
        assert same(weights(other), weights(model))


# --- killed and resumed ------------------------------------------------------------------------------------


class Teacher(nn.Module):
    """Dropout, a frozen backbone whose weights and statistics change in each pass, and a counter."""

    def __init__(self):
        super().__init__()
        wide = nn.Sequential(nn.Linear(2, 9), nn.BatchNorm1d(9, momentum=0.3), nn.Tanh())
        self.backbone, self.head = wide.requires_grad_(False), nn.Linear(9, 2)
        self.passes = 0

    def get_extra_state(self):
        return {(0, "passes"): self.passes, "pair": (1, 2)}

    def set_extra_state(self, state):
        self.passes = state[0, "passes"]

    def forward(self, points):
        if self.training:
            self.passes += 1
            self.backbone[0].weight += 0.01 * self.head.weight.detach().mean()
        return self.head(nn.functional.dropout(self.backbone(points), 0.3, self.training))


# 4 batches of 2 pieces and a validation of 4 pieces per epoch, 4 epochs; saves at the end of each epoch.
MOMENTS = {
    **{f"never, {kind}": [] for kind in KINDS},
    "at the first batch": [("batch", 1, "SIGKILL")],
    "in the middle of the first epoch": [("batch", 5, "SIGKILL")],
    "between two pieces": [("batch", 22, "SIGKILL")],
    "in validation": [("validation", 6, "SIGKILL")],
    "between the row and the checkpoint": [("row", 3, "SIGKILL")],
    "before the first checkpoint gets its name": [("write", 1, "SIGKILL")],
    "before a checkpoint gets its name": [("write", 4, "SIGKILL")],
    "before old ones are removed": [("prune", 2, "SIGKILL")],
    "in the last batch": [("batch", 32, "SIGKILL")],
    "four times": [(*at, "SIGKILL") for at in (("batch", 13), ("batch", 6), ("write", 2), ("validation", 2))],
    "asked to stop in a step": [("batch", 21, "SIGTERM")],
    "asked to stop in validation": [("validation", 6, "SIGTERM")],
    "asked to stop after a row": [("row", 2, "SIGTERM")],
    "interrupted, and again": [("batch", 11, "SIGINT"), ("validation", 3, "SIGINT")],
}
"""Name -> signals; the kinds of KINDS take turns."""
STATUS = {None: 0, "SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}


def kind_of(name):
    return KINDS[list(MOMENTS).index(name) % len(KINDS)]


def train_until(moment, folder, kind):
    """A training that gets a signal at the nth event of a kind; returns the exit status of its process."""
    events, files = Counter(), {"os.rename": ("write", 1), "os.remove": ("prune", 0)}

    def happens(event):
        assert event != "batch" or not events["asked between epochs"]
        events[event] += 1
        if moment and (event, events[event]) == moment[:2]:
            events["asked between epochs"] = event != "batch"
            os.kill(os.getpid(), getattr(signal, moment[2]))

    def audit(event, settings):
        if event in files and "/checkpoint-" in str(settings[files[event][1]]):
            happens(files[event][0])

    class Task(Classification):
        def __call__(self, model, batch):
            happens("batch" if model.training else "validation")
            return super().__call__(model, batch)

    def log(row):
        append_line(folder / "metrics.jsonl", row)
        happens("row")

    sys.addaudithook(audit)
    model, data = from_seed(Teacher), shuffled(kind, 64, 16)
    settings = {"epochs": 4, "learning_rate": 0.02, "micro_batch": 8, "warmup_epochs": 1, "clip_norm": 0.5}
    try:
        progress = fit(model, Task(), data, folder=folder, log=log, seed=7, save_every_steps=1, **settings)
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code
    torch.save((model.state_dict(), vars(progress)), folder / "end.pt")
    return 0


def kill_at_moments(folder):
    """Trains in forked children, which are killed at each of MOMENTS, and then resumes them."""
    torch.set_num_threads(1)  # a fork lacks OpenMP's other threads, and would wait for them
    fit(net(), epochs=1)  # the first training imports modules once, instead of in every child
    os.fsync = lambda descriptor: None  # see conftest.py
    for name, moments in MOMENTS.items():
        (folder / name).mkdir()
        for moment in (*moments, None):
            process = os.fork()
            if not process:
                os._exit(train_until(moment, folder / name, kind_of(name)))
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            assert status == STATUS[moment and moment[2]], (name, moment, status)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of trainings that were killed at each of MOMENTS and then resumed."""
    folder = tmp_path_factory.mktemp("killed")
    code = "import pathlib, sys; from tests.train.test_train import kill_at_moments as f"
    done = forked.python(f"{code}; f(pathlib.Path(sys.argv[1]))", folder)
    assert done.returncode == 0, done.stderr
    return folder


def ends(folder):
    """Weights and progress at the end, the state to resume from, and the rows by epoch, without times."""
    state, progress = torch.load(folder / "end.pt", weights_only=True)
    rows = {row["epoch"]: row | {"seconds": 0} for row in read_lines(folder / "metrics.jsonl")}
    kept = Store(folder, {"seed": 7}).restore()
    for each in (progress, kept["progress"]):
        each |= {"seconds": len(each["seconds"]), "rows": timeless(each["rows"])}
    return {"weights": state, "progress": progress, "kept": kept, "rows": rows}


@pytest.mark.parametrize("moment", list(MOMENTS)[len(KINDS) :])
def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(killed, moment):
    """Bit for bit, with random draws and changing buffers; see `Noisy` and `Teacher`."""
    straight, resumed = ends(killed / f"never, {kind_of(moment)}"), ends(killed / moment)
    for part in straight:
        assert same(resumed[part], straight[part]), part
    assert list(straight["rows"]) == [1, 2, 3, 4]


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    """Every minute of a clock that advances by 25 seconds per update, and at the end of each epoch."""
    passed, saved, save = [], [], Store.save

    def noting(store, state, **options):
        saved.append(state["progress"]["updates"])
        save(store, state, **options)
        store.wait()

    monkeypatch.setattr(Store, "save", noting)
    clock = SimpleNamespace(monotonic=lambda: 25 * len(passed))
    monkeypatch.setattr("qnnkit.train.resume.time", clock)
    fit(net(), epochs=2, save_every_minutes=1.0, folder=tmp_path, on_update=passed.append)
    assert saved == [3, 6, 6, 9, 12, 12]


def test_the_first_epoch_warms_up():
    assert train.Progress(seconds=[9.0]).seconds_per_epoch == 9
    assert train.Progress(seconds=[9.0, 1.0, 4.0]).seconds_per_epoch == 2.5


MISFITS = {
    "no groups": (["optimizer", "param_groups"], []),
    "a short random state": (["random"], [{"torch": torch.zeros(5, dtype=torch.uint8)}]),
    "a random state of floats": (["random", 0, "torch"], torch.zeros(5056)),
    "a random state of words": (["random", 0, "numpy", "key"], torch.zeros(3)),
    "unknown progress": (["progress", "mood"], 1),
    "half a part": (["part"], {"batch": 1}),
    "no part": (["part"], 5),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_skipped(tmp_path, misfit):
    """It is intact, but one entry differs."""
    straight, model, store = net(), net(), Store(tmp_path, {"seed": 0})
    settings = {"epochs": 3, "learning_rate": 0.1, "keep_checkpoints": 3, "folder": tmp_path}
    fit(straight, **settings)
    max(tmp_path.glob("checkpoint-*")).unlink()
    state, ((*above, last), value) = store.restore(), MISFITS[misfit]
    reduce(getitem, above, state)[last] = value
    store.save(state)
    store.wait()
    with pytest.warns(UserWarning, match="does not fit this training .* resumes from `checkpoint-000002"):
        fit(model, **settings)
    assert same(weights(model), weights(straight))


@pytest.mark.parametrize(("other", "seed"), [(linear(8, 3), 0), (nn.BatchNorm1d(8), 0), (linear(8, 2), 1)])
def test_if_no_checkpoint_fits_nothing_restarts_or_changes(tmp_path, other, seed):
    fit(net(), epochs=1, folder=tmp_path)
    model, before = net(seed=1), {path: path.read_bytes() for path in tmp_path.iterdir()}
    model[3] = other
    untouched = weights(model)
    with pytest.raises(ValueError, match=r"belongs to another model: `|another training \({'seed': 0}\)"):
        fit(model, epochs=2, folder=tmp_path, seed=seed)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert same(weights(model), untouched)


def test_the_best_epoch_is_lost_after_training(tmp_path):
    model, again = net(), net()
    fit(model, Scripted([0.9, 0.2, 0.3]), epochs=3, folder=tmp_path)
    min(tmp_path.glob("checkpoint-*")).unlink()  # the first epoch was the best
    with pytest.warns(UserWarning, match="weights of the best epoch are lost"):
        progress = fit(again, Scripted([0.1]), epochs=3, folder=tmp_path)
    assert (progress.best_epoch, progress.best_score[0]) == (3, pytest.approx(0.3))
    assert not same(weights(again), weights(model))


# --- precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "around"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_task_computes_in_float32(precision, around):
    """A user's loss is not rounded to half precision; neither is a circuit: see test_layers.py."""
    model, inside, seen = net(), set(), set()

    class Seeing(Classification):
        def __call__(self, model, batch):
            seen.add(model(batch[0]).dtype)
            return super().__call__(model, batch)

    model[0].register_forward_hook(lambda layer, inputs, output: inside.add(output.dtype))
    fit(model, Seeing(), epochs=1, precision=precision)
    assert inside == {around} and seen == {torch.float32}
    assert not model._forward_hooks, "the training changes the model"
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_rows_of_overflowing_float16_steps_can_be_written():
    json.dumps(fit(net(), epochs=3, precision="float16", device="cuda").rows, allow_nan=False)


# --- errors ------------------------------------------------------------------------------------------------


NAMED = DataLoader([(point, "a name") for point in clouds(8)[0]], batch_size=8)
EMPTY = DataLoader(TensorDataset(*clouds(8)), batch_size=16, drop_last=True)


def of_each_batch(net, batch):
    """Reports another number for every batch."""
    return Step(net(batch[0]).sum(), dict.fromkeys(("accuracy", f"of {batch[0].sum()}"), torch.ones(())), 1)


REFUSED = [
    ({"train": NAMED}, {"micro_batch": 4}, "micro_batch"),
    ({"train": EMPTY}, {}, "the number of train batches"),
    ({"validation": EMPTY}, {}, "the number of validation batches"),
    ({}, {}, "the number of weights to train"),
    ({}, {"task": Classification(monitor="f1")}, "monitor"),
    ({}, {"task": of_each_batch}, "task"),
]


@pytest.mark.parametrize(("data", "settings", "what"), REFUSED)
def test_impossible_trainings_raise_an_error(data, settings, what):
    with refused(what):
        fit(net().requires_grad_("weights" not in what), data=loaders() | data, **settings)
    with refused("the number of validation batches"):
        fit(net(), data={"train": loaders()["train"]})


@pytest.mark.parametrize(
    ("training", "at", "value", "sentence"),
    [
        (True, 1, math.nan, "training loss at epoch 1, batch 0 is not finite. Check the data"),
        (True, 10, math.inf, "training loss at epoch 2, batch 3 is not finite"),
        (False, 4, math.nan, "epoch 2's validation loss is not finite"),
    ],
)
def test_a_loss_that_is_not_finite_names_its_place_and_harms_no_checkpoint(
    tmp_path, training, at, value, sentence
):
    model, rows = net(), []
    broken = At(at, lambda: model[3].weight.data.fill_(value), training)
    with pytest.raises(FloatingPointError, match=f"^The {sentence}"):
        fit(model, broken, epochs=3, folder=tmp_path, log=rows.append)
    assert len(rows) == len(list(tmp_path.glob("checkpoint-*"))) < 2
    with pytest.raises(FloatingPointError, match=r"^The loss is not finite\. Check the data"):
        train.evaluate(model, TASK, loaders()["validation"])


def test_a_gradient_that_is_not_finite_names_its_group_and_changes_nothing(monkeypatch):
    # Importing torch's compiler, as every optimizer of torch does at its first step, sets this variable.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor"))
    import accelerate  # noqa: F401 - its import adds a filter of warnings

    def surroundings():
        """Globals that tests/conftest.py does not check after every test."""
        lists = logging.root.handlers, warnings.filters, vars(model)
        states = torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu"), dict(os.environ)
        return [list(each) for each in lists], states

    model = net()
    model[3].weight.register_hook(lambda gradient: gradient * math.inf)
    before = surroundings()
    with pytest.raises(FloatingPointError, match="gradient of the second weights at epoch 1, batch 0 is not"):
        fit(model, groups=groups(model), precision="bfloat16", micro_batch=4)
    assert surroundings() == before
