"""qnnkit.train.processes: two processes take the same steps as one with batches of twice the size."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader

from qnnkit.train.processes import Processes, Share, shares
from tests import forked
from tests.same import same

TOLERANCE = 1e-5  # float32: the same gradients, added in another order, over 24 steps

SCRIPT = """
    # Every process runs this; the batches of all together hold 16 samples of 97, so the last is one sample.
    import os, signal, sys
    from pathlib import Path
    import torch
    from torch import nn
    from qnnkit import train
    from qnnkit.settings import Settings
    from tests.toys import Batches
    from qnnkit.tasks import Classification, Step
    from qnnkit.train.processes import n_processes

    folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", 0))
    seen = []

    class Task(Classification):
        # Counts some of the samples, as a language model counts answers: of some pieces none.
        stop_at = None

        def __call__(self, model, batch):
            points, labels = batch
            seen.append(points)
            if len(seen) == self.stop_at and rank == n_processes() - 1:
                os.kill(os.getpid(), signal.SIGTERM)  # the last process is told; all of them stop
            counted = points[:, 0] < 0.6
            logits, n = model(points), int(counted.sum())
            total = (nn.functional.cross_entropy(logits, labels, reduction="none") * counted).sum()
            hits = ((logits.argmax(1) == labels) & counted).sum()
            return Step(total / max(1, n), {"loss": total.detach(), "accuracy": hits}, n)

    def trains(name, stop_at=None, micro_batch=None):
        torch.manual_seed(0)
        points = torch.rand(141, 2, generator=torch.Generator().manual_seed(1))
        labels = (points.sum(1) > 1).long()
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        model[0].bias.requires_grad_(False)  # as an adapter's base
        size = 16 // n_processes()
        loaders = {
            "train": Batches(points[:97], labels[:97], size, shuffle=True, seed=3),
            "validation": Batches(points[97:], labels[97:], size, shuffle=False),
        }
        config = Settings(epochs=3, learning_rate=0.05, clip_norm=0.3, micro_batch=micro_batch)
        task = Task()
        task.stop_at = stop_at
        seen.clear()
        rows = []
        try:
            progress = train.fit(model, task, loaders, config, seed=7, folder=folder / name, log=rows.append)
        except SystemExit:
            return print(rank, "stopped", flush=True)
        assert bool(rows) <= (rank == 0), "the first process alone writes"
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in progress.rows]
        torch.save((model.state_dict(), rows), folder / f"{name}.{n_processes()}.{rank}.pt")

    for task in sys.argv[2:]:
        name, stop_at, micro_batch = task.split(",")
        trains(name, int(stop_at) or None, int(micro_batch) or None)
"""


ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def launch(code, n, *arguments):
    """Runs `code` in n processes that find each other as those that torchrun or Accelerate start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(n)}

    def one(rank):
        own = there | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if n > 1 else {}
        done = forked.python(code, *arguments, env=ENVIRONMENT | own)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What trainings by one and by two processes end in; some begin with one and end with the other."""
    folder = tmp_path_factory.mktemp("processes")
    launch(SCRIPT, 1, folder, "straight,0,0", "in pieces,0,6", "first one,12,0")
    told = launch(SCRIPT, 2, folder, "both,0,0", "both in pieces,0,3", "first two,12,0", "first one,0,0")
    assert told == ["0 stopped\n", "1 stopped\n"]
    launch(SCRIPT, 1, folder, "first two,0,0")
    return lambda name: torch.load(folder / f"{name}.pt", weights_only=True)


def close(one, other):
    (weights, rows), (other_weights, other_rows) = one, other
    assert all(torch.allclose(weights[name], other_weights[name], atol=TOLERANCE) for name in weights)
    assert len(rows) == len(other_rows) == 3
    for row, other_row in zip(rows, other_rows, strict=True):
        assert row == pytest.approx(other_row, abs=TOLERANCE)


OTHERS = "in pieces.1.0", "both.2.0", "both in pieces.2.0", "first one.2.0", "first two.1.0"


@pytest.mark.parametrize("other", OTHERS)
def test_two_are_one_with_twice_the_batch_and_checkpoints_serve_both(trained, other):
    close(trained("straight.1.0"), trained(other))


def test_all_processes_end_with_the_same_bits(trained):
    assert same(trained("both.2.0"), trained("both.2.1"))


@pytest.mark.parametrize(("n", "size", "world"), [(97, 8, 2), (96, 8, 2), (5, 2, 3), (1, 4, 2), (64, 1, 4)])
def test_shares_are_of_equal_number_and_together_everything(n, size, world):
    batches = [list(range(start, min(start + size, n))) for start in range(0, n, size)]
    for index, parts in enumerate(zip(*(shares(batches, rank, world) for rank in range(world)), strict=True)):
        whole = range(index * world * size, min((index + 1) * world * size, n))
        assert sorted(sample for part, own in parts if own for sample in part) == list(whole)
        assert all(part for part, _ in parts)  # one without samples of its own computes along on one


RUN = "import sys; from qnnkit import runs; runs.train_all(runs.open_run(sys.argv[1]))"


def test_a_run_on_two_processes_and_on_one(tmp_path):
    from qnnkit import runs

    found, small = [], {"epochs": 1, "n_seeds": 1, "controls": ["classical"], "n_layers": 1, "hidden": 4}
    for n in (1, 2):
        runs.open_run(tmp_path / str(n), "digits_quanv", **small, batch_size=64 // n)
        launch(RUN, n, tmp_path / str(n))
        run = runs.open_run(tmp_path / str(n))
        assert len(run.finals()) == 2 and len(run.epochs()) == 2
        found.append(run.epochs()[["train_loss", "validation_loss"]].to_numpy())
    assert found[0] == pytest.approx(found[1], abs=1e-4)


class Counting(torch.utils.data.Dataset):
    """Samples that note that they are loaded."""

    def __init__(self):
        self.loaded = []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.loaded.append(index)
        return index


class Own(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize(("kind", "n_loaded"), [(DataLoader, 8), (Own, 20)])
def test_an_epoch_begun_in_the_middle_loads_only_what_is_left(kind, n_loaded):
    """Where a loader has no indices it loads all. That it is that epoch: test_train.py."""
    dataset = Counting()
    share = Share(kind(dataset, batch_size=4), Processes(torch.device("cpu")))
    with torch.random.fork_rng(devices=[]):
        assert [batch.tolist() for batch, _ in share.batches(3)] == [[12, 13, 14, 15], [16, 17, 18, 19]]
        assert len(dataset.loaded) == n_loaded and list(share.batches(5)) == []


@pytest.mark.parametrize("name", ["meta", "cpu", *(["cuda:1"] if torch.cuda.device_count() > 1 else [])])
def test_one_process_trains_on_the_device_that_it_is_told(name):
    """Accelerate by itself would not take cuda:1."""
    device = torch.device(name)
    processes = Processes(device)
    assert processes.device == device and (processes.rank, processes.world) == (0, 1)
    assert processes.spread(torch.nn.utils.skip_init(torch.nn.Linear, 2, 2)).weight.device == device
