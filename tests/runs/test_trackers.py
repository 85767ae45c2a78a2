"""qnnkit.runs.trainings.tracked: rows reach the trackers, and a tracker that is down never harms training."""

import re
import threading
import time

import pytest
from accelerate import tracking
from accelerate.state import PartialState

from qnnkit import runs
from qnnkit.runs import trainings
from tests.same import raises
from tests.toys import TINY

AT_ONCE = 5.0  # seconds: the longest normal end on a busy machine; a wait takes longer
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of others


@pytest.fixture
def begin(home, monkeypatch, pictures):
    """Begins a run in a new workspace: `begin("name", "tracker", ...)`."""
    monkeypatch.setattr(trainings, "END", 60.0)  # a busy machine changes no result

    def begin(name, *trackers):
        settings = {**TINY, "data_dir": str(pictures), "trackers": trackers}
        return runs.open_run(f"runs/{name}", "folder_quanv", **settings)

    return begin


def scalars(home):
    """What TensorBoard has read: tag -> [(step, value)]."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    [folder] = (home / "tensorboard").iterdir()
    events = accumulator.EventAccumulator(str(folder)).Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, round(event.value, 4)) for event in events.Scalars(tag)] for tag in tags}


def test_a_run_is_tracked_in_the_workspace(begin, tmp_path):
    """Net after net, each with its own Accelerator; the run folder has no files of a tracker."""
    run, before = begin("tracked", "tensorboard"), dict(PartialState._shared_state)
    runs.train_all(run)
    assert dict(PartialState._shared_state) == before, "the next net may use another device"
    curves, rows = scalars(tmp_path), runs.frame(run, "epoch")
    losses = [value for net in run.nets for _, value in curves[f"{net}/seed0/train_loss"]]
    assert losses == pytest.approx(rows["train_loss"].tolist(), abs=1e-4)
    assert [step for step, _ in curves["classical/seed0/train_loss"]] == rows["updates"].tolist()[2:]
    assert not [tag for tag in curves if tag.endswith(("/net", "/event", "/device"))], "only numbers"
    assert not list(run.folder.rglob("*tfevents*"))


over = threading.Event()
WRONG = {
    "fails": (raises(RuntimeError("no such\nserver.")), "RuntimeError: no such"),
    "leaves": (raises(SystemExit(1)), "SystemExit: 1"),
    "hangs": (lambda *_, **__: over.wait(2 * AT_ONCE), "it had not finished 0 s after the training"),
}


@pytest.mark.parametrize("method", ["start", "log", "finish"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_tracker_that_is_down_gives_one_sentence_and_no_harm(begin, monkeypatch, capsys, wrong, method):
    act, why = WRONG[wrong]
    made = {"__init__": lambda self, project: None, "name": "own", "tracker": None, method: act}
    kind = type("Own", (tracking.GeneralTracker,), {**made, "requires_logging_directory": False})
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "own", kind)
    monkeypatch.setattr(trainings, "END", 0.1 if wrong == "hangs" else 60.0)
    run = begin("run", "own")
    with trainings.tracked(run):
        run.log("metrics", {"event": "epoch", "net": "classical", "seed": 0, "epoch": 1})
        start = time.perf_counter()
    assert time.perf_counter() - start < AT_ONCE
    over.set()  # the hanging thread ends
    over.clear()
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Tracker")]
    assert re.match(rf"Tracker `own` is disabled: .*{why}.*\. Training continues, and ", said)
