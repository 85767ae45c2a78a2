"""qnnkit.runs.trainings.tracked: rows arrive in trackers; one that is down costs training nothing."""

import contextlib
import re
import sqlite3
import threading
import time

import pytest
from accelerate import tracking
from accelerate.state import PartialState

from qnnkit import runs
from qnnkit.runs import trainings

AT_ONCE = 5.0  # seconds: what a call of `track` may take, at most, on a busy machine; a wait takes longer
OF_OTHERS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
THREE = [(1, 1.0), (2, 0.5), (3, 0.3333)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace of its own, where no variable names a tracker."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setattr(trainings, "END", 60.0)  # a busy machine decides nothing
    return tmp_path


def train(*names, **config):
    """Two nets; returns how long the longest call took, and the end."""
    took = []
    with trainings.tracked(names, "digits_quanv", "a-1", {"epochs": 3, "data_dir": None, **config}) as track:
        for net in ("hybrid", "classical"):
            for epoch in range(1, 4):
                row = {"event": "epoch", "net": net, "seed": 0, "epoch": epoch, "train_loss": 1 / epoch}
                row |= {"best": True, "gradient_norm": None, "validation_loss": float("nan")}
                start = time.perf_counter()
                track(row, epoch, f"{net}/seed0")
                took.append(time.perf_counter() - start)
        start = time.perf_counter()
    return max(took), time.perf_counter() - start


def left_out(capsys, name, why):
    """Whether exactly one sentence was said on trackers: of this one, why, and what to do."""
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Tracker")]
    return re.match(rf"Tracker `{name}` is left out from here on: .*{why}.*\. Training goes on, and ", said)


def scalars(home):
    """What TensorBoard reads: tag -> [(step, value)]."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    [folder] = (home / "tensorboard").iterdir()
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_an_unknown_name_is_refused_with_the_nearest(pictures, tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean 'tensorboard'.* choices are .*mlflow"):
        settings = {"data_dir": str(pictures), "image_size": 6, "trackers": ["tensorbord"]}
        runs.open_run(tmp_path / "run", "folder_quanv", **settings)


@pytest.mark.parametrize(("names", "rank"), [((), "0"), (("tensorboard",), "1")])
def test_without_trackers_and_in_other_processes_of_a_training_nothing_begins(home, monkeypatch, names, rank):
    monkeypatch.setenv("RANK", rank)
    before = threading.active_count()
    train(*names)
    assert threading.active_count() == before and list(home.iterdir()) == []


@OF_OTHERS
def test_tensorboard_reads_back_the_numbers(home):
    before = dict(PartialState._shared_state)
    assert train("tensorboard", controls=["classical", "no_entanglement"])[0] < AT_ONCE
    numbers = {"train_loss": THREE, "epoch": [(epoch, float(epoch)) for epoch in (1, 2, 3)]}
    nets = ("hybrid", "classical")
    assert scalars(home) == {f"{net}/seed0/{name}": numbers[name] for net in nets for name in numbers}
    assert dict(PartialState._shared_state) == before, "the next net may compute elsewhere"


def test_a_run_is_tracked_in_the_workspace_and_trained_alike(home, pictures):
    """Net after net, each with an Accelerator of its own; nothing of a tracker lies in the run folder."""
    settings = {"data_dir": str(pictures), "image_size": 6, "epochs": 2, "n_seeds": 1}
    settings |= {"controls": ["classical"], "batch_size": 4}
    losses, files = [], []
    for name, wanted in (("plain", []), ("tracked", ["tensorboard"])):
        run = runs.open_run(home / "runs" / name, "folder_quanv", **settings, trackers=wanted)
        assert len(runs.train_all(run)) == 2
        losses.append([row["train_loss"] for row in run.rows("metrics") if row["event"] == "epoch"])
        files.append(sorted(path.name for path in run.folder.iterdir()))
    assert losses[0] == losses[1] and files[0] == files[1]
    found = [
        value for tag in ("hybrid", "classical") for _, value in scalars(home)[f"{tag}/seed0/train_loss"]
    ]
    assert found == pytest.approx(losses[1], abs=1e-4)


def fail(*_, **__):
    raise RuntimeError("no such\nserver.")


def leave(*_, **__):
    raise SystemExit(1)


over = threading.Event()
WRONG = {
    "fails": (fail, "RuntimeError: no such"),
    "leaves": (leave, "SystemExit: 1"),
    "hangs": (lambda *_, **__: over.wait(2 * AT_ONCE), "it had not finished 0 s after the training"),
}


@pytest.mark.parametrize("method", ["start", "log", "finish"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_tracker_that_is_down_is_one_sentence_and_training_goes_on(
    home, monkeypatch, capsys, wrong, method
):
    about = {"name": "own", "requires_logging_directory": False, "tracker": None}
    act, why = WRONG[wrong]
    made = {"__init__": lambda self, project: None, **about, method: act}
    kind = type("Own", (tracking.GeneralTracker,), made)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "own", kind)
    if wrong == "hangs":
        monkeypatch.setattr(trainings, "END", 0.1)
        longest, end = train("own")
        assert max(longest, end) < AT_ONCE
        over.set()
    else:
        assert train("own", "tensorboard")[0] < AT_ONCE
        assert scalars(home)["classical/seed0/train_loss"] == THREE, "and harms no other"
    over.clear()
    assert left_out(capsys, "own", why)


@OF_OTHERS
@pytest.mark.slow
def test_mlflow_reads_back_the_numbers(home, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    train("mlflow")
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        rows = database.execute("select step, round(value, 4), key from metrics").fetchall()
        assert ("epochs", "3") in database.execute("select key, value from params").fetchall()
    assert sorted({(step, value) for step, value, key in rows if key.endswith("train_loss")}) == THREE
