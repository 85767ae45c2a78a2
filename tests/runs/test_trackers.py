"""qnnkit.runs.trainings.tracked: rows arrive in trackers; one that is down costs training nothing."""

import re
import threading
import time

import pytest
from accelerate import tracking
from accelerate.state import PartialState

from qnnkit import runs
from qnnkit.runs import trainings

AT_ONCE = 5.0  # seconds: what an end may take, at most, on a busy machine; a wait takes longer
OF_OTHERS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
THREE = [(1, 1.0), (2, 0.5), (3, 0.3333)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace of its own, where no variable names a tracker."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setattr(trainings, "END", 60.0)  # a busy machine decides nothing
    return tmp_path


@pytest.fixture
def train(home, pictures):
    """Tracks the rows of two nets; gives how long the end took."""

    def track(*names):
        given = {"data_dir": str(pictures), "image_size": 6, "controls": ["classical"]}
        run = runs.open_run("run", "folder_quanv", **given)
        run = runs.Run(run.folder, run.config.model_copy(update={"trackers": names}))
        with trainings.tracked(run):
            for net in run.nets:
                for epoch in range(1, 4):
                    row = {"event": "epoch", "net": net, "seed": 0, "epoch": epoch, "updates": epoch}
                    run.log("metrics", row | {"best": True, "nothing": None, "train_loss": 1 / epoch})
            start = time.perf_counter()
        return time.perf_counter() - start

    return track


def scalars(home):
    """What TensorBoard reads: tag -> [(step, value)]."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    [folder] = (home / "tensorboard").iterdir()
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@OF_OTHERS
def test_a_run_is_tracked_in_the_workspace_and_trained_alike(home, pictures):
    """Net after net, each with an Accelerator of its own; nothing of a tracker lies in the run folder."""
    settings = {"data_dir": str(pictures), "image_size": 6, "epochs": 2, "n_seeds": 1}
    settings |= {"controls": ["classical"], "batch_size": 4}
    losses, files, before = [], [], dict(PartialState._shared_state)
    for name, wanted in (("plain", []), ("tracked", ["tensorboard"])):
        assert not (home / "tensorboard").exists()
        run = runs.open_run(home / "runs" / name, "folder_quanv", **settings, trackers=wanted)
        assert len(runs.train_all(run)) == 2
        losses.append([row["train_loss"] for row in run.rows("metrics") if row["event"] == "epoch"])
        files.append(sorted(path.name for path in run.folder.iterdir()))
    assert losses[0] == losses[1] and files[0] == files[1]
    assert dict(PartialState._shared_state) == before, "the next net may compute elsewhere"
    found = scalars(home)
    kept = [value for net in ("hybrid", "classical") for _, value in found[f"{net}/seed0/train_loss"]]
    assert kept == pytest.approx(losses[1], abs=1e-4)


def raises(error):
    def act(*_, **__):
        raise error

    return act


over = threading.Event()
WRONG = {
    "fails": (raises(RuntimeError("no such\nserver.")), "RuntimeError: no such"),
    "leaves": (raises(SystemExit(1)), "SystemExit: 1"),
    "hangs": (lambda *_, **__: over.wait(2 * AT_ONCE), "it had not finished 0 s after the training"),
}


@OF_OTHERS
@pytest.mark.parametrize("method", ["start", "log", "finish"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_tracker_that_is_down_is_one_sentence_and_harms_nobody(
    home, train, monkeypatch, capsys, wrong, method
):
    about = {"name": "own", "requires_logging_directory": False, "tracker": None}
    act, why = WRONG[wrong]
    made = {"__init__": lambda self, project: None, **about, method: act}
    kind = type("Own", (tracking.GeneralTracker,), made)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "own", kind)
    if wrong == "hangs":
        monkeypatch.setattr(trainings, "END", 0.1)
        assert train("own") < AT_ONCE
        over.set()
    else:
        train("own", "tensorboard")
        found = scalars(home)
        names = {tag.split("/seed0/")[1] for tag in found}
        assert found["classical/seed0/train_loss"] == THREE
        assert names == {"seed", "epoch", "updates", "train_loss"}
    over.clear()
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Tracker")]
    assert re.match(rf"Tracker `own` is left out from here on: .*{why}.*\. Training goes on, and ", said)
