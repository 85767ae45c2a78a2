"""qnnkit.train.processes: two processes take the same steps as one with batches of twice the size."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from qnnkit import runs
from qnnkit.tasks import Classification, Step
from qnnkit.train.processes import n_processes
from tests import forked
from tests.same import same
from tests.toys import Batches
from tests.train.test_train import clouds, fit, loaders, net, terminate, timeless

TOLERANCE = 1e-5  # float32: the same gradients, added in another order, over 24 steps


class Counted(Classification):
    """Counts only some samples, as a language model counts answers; some pieces count none."""

    def __call__(self, model, batch):
        points, labels = batch
        counted, logits = points[:, 0] < 0.6, model(points)
        losses, n = nn.functional.cross_entropy(logits, labels, reduction="none"), int(counted.sum())
        total, hits = (losses * counted).sum(), (logits.argmax(1) == labels) & counted
        return Step(total / max(1, n), {"loss": total.detach(), "accuracy": hits.sum()}, n)


def train_together(folder, *trainings):
    """Every process trains "name,update to stop at,micro_batch"; each step uses 16 of 97 samples in all.

    So the last batch has one sample.
    """
    rank, world = int(os.environ.get("RANK", 0)), n_processes()
    for name, stop_at, micro_batch in (each.split(",") for each in trainings):
        model, rows = net(), []
        model[0].bias.requires_grad_(False)  # like the base of an adapter
        data = loaders(97, 16 // world, shuffle=True)
        data["validation"] = Batches(*clouds(33, 1), 16 // world, shuffle=False)

        def stop(row, at=int(stop_at)):
            if row["updates"] == at and rank == world - 1:
                terminate()  # only the last process gets the signal; all of them stop

        settings = {
            "epochs": 3,
            "learning_rate": 0.05,
            "clip_norm": 0.3,
            "micro_batch": int(micro_batch) or None,
        }
        settings |= {"seed": 7, "folder": Path(folder, name), "log": rows.append, "on_update": stop}
        try:
            progress = fit(model, Counted(), data, **settings)
        except SystemExit:
            print(rank, "stopped", flush=True)
            continue
        assert bool(rows) <= (rank == 0), "only the first process writes"
        torch.save((model.state_dict(), timeless(progress.rows)), Path(folder, f"{name}.{world}.{rank}.pt"))


TRAIN = "import sys; from tests.train.test_processes import train_together as f; f(*sys.argv[1:])"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def launch(code, *arguments):
    """Runs `code` in two connected processes, like those that torchrun or Accelerate start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def one(rank):
        ranked = there | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        done = forked.python(code, *arguments, env=ENVIRONMENT | ranked)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Results of trainings by one and by two processes; some switch between one and two."""
    folder = tmp_path_factory.mktemp("processes")
    train_together(folder, "straight,0,0", "in pieces,0,6", "first one,9,0")
    lines = launch(TRAIN, folder, "both,0,0", "both in pieces,0,3", "first two,9,0", "first one,0,0")
    assert lines == ["0 stopped\n", "1 stopped\n"]
    train_together(folder, "first two,0,0")
    return lambda name: torch.load(folder / f"{name}.pt", weights_only=True)


OTHERS = "in pieces.1.0", "both.2.0", "both in pieces.2.0", "first one.2.0", "first two.1.0"


@pytest.mark.parametrize("other", OTHERS)
def test_two_processes_equal_one_with_twice_the_batch_and_share_checkpoints(trained, other):
    """All processes end with bitwise equal weights."""
    (weights, rows), (other_weights, other_rows) = trained("straight.1.0"), trained(other)
    for name, weight in weights.items():
        torch.testing.assert_close(other_weights[name], weight, rtol=TOLERANCE, atol=TOLERANCE)
    assert other_rows == [pytest.approx(row, abs=TOLERANCE) for row in rows] and len(rows) == 3
    assert same(trained("both.2.0"), trained("both.2.1"))


RUN = "import sys; from qnnkit import runs; runs.train_all(runs.open_run(sys.argv[1]))"


def test_a_run_is_the_same_on_one_and_on_two_processes(tmp_path):
    small = {"epochs": 1, "n_seeds": 1, "controls": [], "n_layers": 1, "train_fraction": 0.3}
    runs.train_all(runs.open_run(tmp_path / "1", "digits_quanv", **small, batch_size=64))
    runs.open_run(tmp_path / "2", "digits_quanv", **small, batch_size=32)
    launch(RUN, tmp_path / "2")
    one, two = (runs.open_run(tmp_path / name) for name in "12")
    assert len(runs.frame(two)) == len(runs.frame(two, "epoch")) == 1
    rows = [runs.frame(run, "epoch")[["train_loss", "validation_loss"]].to_numpy() for run in (one, two)]
    assert rows[0] == pytest.approx(rows[1], abs=1e-4)
