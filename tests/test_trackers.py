"""qnnkit.runs.trackers: rows arrive in the trackers themselves; one that is down costs training nothing."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from importlib import util

import pytest
from accelerate import tracking
from accelerate.state import PartialState

from qnnkit import runs
from qnnkit.runs import trackers

AT_ONCE = 5.0  # seconds: what a call of `track` may take, at most, on a busy machine; a wait takes longer
LEFT_OUT = (
    r"Tracker `{}` is left out from here on: .*{}.*\. Training goes on, and metrics.jsonl has every row\. "
)
OF_OTHERS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
THREE = [(1, 1.0), (2, 0.5), (3, 0.3333)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace of its own, where no variable names a tracker."""
    for name in os.environ:
        if name.startswith(("MLFLOW_", "WANDB_", "TRACKIO_")):
            monkeypatch.delenv(name)
    for name in trackers.ENVIRONMENT:  # what is set from here on ends with the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr(trackers, "END", 60.0)  # a busy machine decides nothing
    return tmp_path


@pytest.fixture
def own(home, monkeypatch):
    """A tracker of the user's, by its name `own`: `own(start=..., log=..., finish=...)`."""

    def register(**methods):
        about = {"name": "own", "requires_logging_directory": False, "tracker": None}
        given = {name: lambda self, *_, act=act, **__: act() for name, act in methods.items()}
        made = {"__init__": lambda self, project: None, **about, **given}
        monkeypatch.setitem(
            tracking.LOGGER_TYPE_TO_CLASS, "own", type("Own", (tracking.GeneralTracker,), made)
        )

    return register


def begin(*names, begun="2026-01-01T12:00:00Z", run="digits-1", **config):
    return trackers.tracked(names, "digits_quanv", run, begun, {"epochs": 3, "data_dir": None, **config})


def train(track, epochs=range(1, 4)):
    """Two nets; returns how long the longest call took."""
    longest = 0.0
    for net in ("hybrid", "classical"):
        for epoch in epochs:
            row = {"event": "epoch", "net": net, "seed": 0, "epoch": epoch, "train_loss": 1 / epoch}
            row |= {"best": True, "gradient_norm": None, "validation_loss": float("nan")}
            start = time.perf_counter()
            track(row, epoch, f"{net}/seed0")
            longest = max(longest, time.perf_counter() - start)
    return longest


def told_once(capsys, name, why):
    """Whether exactly one sentence was said on trackers: of this one, why, and what to do."""
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Tracker")]
    assert len(said) == 1, said
    found = re.match(LEFT_OUT.format(name, why), said[0])
    return found and said[0][found.end() :]


def folder_of(home):
    [folder] = (home / "tensorboard").iterdir()
    return folder


def scalars(home):
    """What TensorBoard reads: tag -> [(step, value)]."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder_of(home))).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


# --- names -------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_nearest(pictures, tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean 'tensorboard'.* choices are .*mlflow.* all"):
        settings = {"data_dir": str(pictures), "image_size": 6, "trackers": ["tensorbord"]}
        runs.open_run(tmp_path / "run", "folder_quanv", **settings)
    trackers.require_known([*tracking.LOGGER_TYPE_TO_CLASS, "all"])


@pytest.mark.parametrize(("names", "rank"), [((), "0"), (("tensorboard",), "1")])
def test_without_trackers_and_in_other_processes_of_a_training_nothing_begins(home, monkeypatch, names, rank):
    monkeypatch.setenv("RANK", rank)
    before = threading.active_count()
    with begin(*names) as track:
        train(track)
        assert threading.active_count() == before
    assert list(home.iterdir()) == []


def test_what_is_not_installed_is_told_once_with_what_to_type(home, tmp_path, monkeypatch, capsys):
    """A folder of its name is no package: W&B itself writes to `wandb/` in the workspace."""
    name = next(name for name in ("comet_ml", "clearml", "aim", "wandb") if not util.find_spec(name))
    (tmp_path / name).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with begin(name) as track:
        train(track)
    assert told_once(capsys, name, f"not installed.*pip install {name}")


@OF_OTHERS
def test_all_are_those_that_are_installed(home):
    pytest.importorskip("tensorboard")
    installed = {str(name) for name in tracking.get_available_trackers()}
    with begin("all") as track:
        train(track)
        assert installed <= {thread.name for thread in threading.enumerate()}
    assert scalars(home)["hybrid/seed0/train_loss"] == THREE


# --- TensorBoard -------------------------------------------------------------------------------------------


def test_tensorboard_reads_back_the_numbers(home):
    pytest.importorskip("tensorboard")
    before = dict(PartialState._shared_state)
    with begin("tensorboard", controls=["classical", "no_entanglement"]) as track:
        assert train(track) < AT_ONCE
    epochs = [(epoch, float(epoch)) for epoch in (1, 2, 3)]
    numbers = {"train_loss": THREE, "epoch": epochs}
    nets = ("hybrid", "classical")
    assert scalars(home) == {f"{net}/seed0/{name}": numbers[name] for net in nets for name in numbers}
    [settings] = folder_of(home).glob("*/hparams.yml")
    assert "no_entanglement" in settings.read_text()
    assert dict(PartialState._shared_state) == before, "the next net may compute elsewhere"


def test_a_resumed_run_goes_on_in_tensorboard(home):
    pytest.importorskip("tensorboard")
    with begin("tensorboard") as track:
        train(track, range(1, 3))
    with begin("tensorboard", epochs=5) as track:
        train(track, range(2, 4))  # step 2 twice: after a kill before its checkpoint
    assert sorted(set(scalars(home)["hybrid/seed0/train_loss"])) == THREE
    assert len(list(folder_of(home).glob("*/hparams.yml"))) == 1, "the settings are told once"
    with begin("tensorboard", begun="2026-01-02T12:00:00Z"):
        pass
    assert len(list((home / "tensorboard").iterdir())) == 2, "a run of the same name is another one"


def test_a_run_is_tracked_in_the_workspace_and_trained_alike(home, pictures):
    """Net after net, each with an Accelerator of its own; nothing of a tracker lies in the run folder."""
    pytest.importorskip("tensorboard")
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
    rows = run.rows("metrics")
    for event, name in (("step", "loss"), ("epoch", "validation_loss")):
        own = [
            row for row in rows if row["event"] in (event, "epoch") and row["net"] == "hybrid" and name in row
        ]
        told = [(row["updates"], round(row[name], 4)) for row in own]
        assert scalars(home)[f"hybrid/seed0/{name}"] == told and len(told) >= (2 if event == "epoch" else 1)
    assert folder_of(home).name.startswith("tracked-")


# --- trackers that are down --------------------------------------------------------------------------------


def test_a_tracker_that_cannot_write_is_left_out(home, capsys):
    pytest.importorskip("tensorboard")
    (home / "tensorboard").write_text("a file is in the way")
    with begin("tensorboard") as track:
        assert train(track) < AT_ONCE
    assert told_once(capsys, "tensorboard", "Error")


def fail():
    raise RuntimeError("no such\nserver.")


def leave():
    raise SystemExit(1)


@pytest.mark.parametrize("act, why", [(fail, "RuntimeError: no such server"), (leave, "SystemExit: 1")])
@pytest.mark.parametrize("method", ["start", "store_init_configuration", "log", "finish"])
def test_any_error_is_one_sentence_and_training_goes_on(home, own, capsys, method, act, why):
    pytest.importorskip("tensorboard")
    own(**{method: act})
    with begin("own", "tensorboard") as track:
        assert train(track) < AT_ONCE
    assert told_once(capsys, "own", why)
    assert scalars(home)["classical/seed0/train_loss"] == THREE, "and harms no other"


@pytest.fixture
def hang():
    """Waits until the test ends, at most twice as long as what may take a moment."""
    over = threading.Event()
    yield lambda: over.wait(2 * AT_ONCE)
    over.set()


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_one_that_hangs_neither_slows_training_nor_keeps_it(home, own, hang, monkeypatch, capsys, method):
    own(**{method: hang})
    monkeypatch.setattr(trackers, "END", 0.1)
    with begin("own") as track:
        assert train(track) < AT_ONCE
        start = time.perf_counter()
    assert time.perf_counter() - start < AT_ONCE
    assert told_once(capsys, "own", "it had not finished 0 s after the training")


def test_an_error_of_the_training_is_not_hidden(home):
    pytest.importorskip("tensorboard")
    with pytest.raises(FloatingPointError, match="not finite"), begin("tensorboard") as track:
        train(track)
        raise FloatingPointError("The training loss is not finite.")
    assert scalars(home)["hybrid/seed0/train_loss"] == THREE, "what came before it has arrived"


HUNG = """
    import os, threading, time
    from accelerate import tracking
    from qnnkit.runs import trackers

    class Own(tracking.GeneralTracker):
        name, requires_logging_directory, tracker = "own", False, None
        def __init__(self, project): pass
        def log(self, *_, **__): threading.Event().wait()

    tracking.LOGGER_TYPE_TO_CLASS["own"] = Own
    trackers.END = 0.2
    other = os.fork()  # which trains until Ctrl-C
    with trackers.tracked(["own"], "project", "run", None, {}) as track:
        track({"loss": 0.5}, 1, "hybrid/seed0")
        if not other:
            print(os.getpid(), flush=True)
            time.sleep(60)
    print("trained", os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]), flush=True)
"""


def test_a_process_with_a_hung_tracker_ends_at_once_and_by_ctrl_c(home):
    command = [sys.executable, "-c", textwrap.dedent(HUNG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        waits = int(process.stdout.readline())
        start = time.monotonic()
        os.kill(waits, signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert out == f"trained {-signal.SIGINT}\n" and said.count("Tracker `own` is left out") == 2
    assert process.returncode == 0, said


# --- MLflow ------------------------------------------------------------------------------------------------


SCRIPT = """
    import sys
    from qnnkit.runs import trackers

    trackers.END = 120.0
    with trackers.tracked([sys.argv[1]], "digits_quanv", sys.argv[2], None, {"epochs": 3}) as track:
        for epoch in range(int(sys.argv[3]), 4):
            track({"train_loss": 1 / epoch}, epoch, "hybrid/seed0")
"""
TRACKING = (sys.executable, "-c", textwrap.dedent(SCRIPT))


def mlflow_rows(home, what, table):
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        return database.execute(f"select {what} from {table}").fetchall()


@OF_OTHERS
@pytest.mark.slow
def test_mlflow_reads_back_the_numbers_of_runs_that_begin_at_once(home):
    """As the first runs of a batch do: they share one new database."""
    pytest.importorskip("mlflow")
    names = ("digits-1", "digits-2", "digits-3")
    others = [subprocess.Popen([*TRACKING, "mlflow", name, "1"]) for name in names]
    assert [each.wait(timeout=240) for each in others] == [0, 0, 0]
    found = [(name[:-7], status) for name, status in mlflow_rows(home, "name, status", "runs")]
    assert sorted(found) == [(name, "FINISHED") for name in names]
    assert ("epochs", "3") in mlflow_rows(home, "key, value", "params")
    rows = mlflow_rows(home, "step, round(value, 4), key", "metrics")
    assert len(rows) == 3 * 3 and sorted({(step, value) for step, value, _ in rows}) == THREE


@OF_OTHERS
def test_mlflow_where_nothing_listens_is_told_and_harms_no_other(home, monkeypatch, capsys):
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with begin("mlflow", "tensorboard") as track:
        assert train(track) < AT_ONCE
    assert told_once(capsys, "mlflow", "127.0.0.1")
    assert scalars(home)["classical/seed0/train_loss"] == THREE


# --- W&B and trackio ---------------------------------------------------------------------------------------


@OF_OTHERS
def test_wandb_keeps_a_resumed_run_as_one(home, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for epochs in (range(1, 3), range(2, 4)):
        with begin("wandb") as track:
            assert train(track, epochs) < AT_ONCE
    kept = list(home.glob("wandb/offline-run-*/*.wandb"))
    assert len({path.name for path in kept}) == 1, "a resumed run has the same id"
    content = kept[0].read_bytes()
    assert b"hybrid/seed0/train_loss" in content and b"classical/seed0/train_loss" in content


def test_trackio_keeps_a_resumed_run_as_one_in_the_workspace(home):
    """In processes of their own: trackio reads its place once."""
    pytest.importorskip("trackio")
    for first in ("1", "3"):
        subprocess.run([*TRACKING, "trackio", "digits-1", first], check=True)
    with contextlib.closing(sqlite3.connect(home / "trackio" / "digits_quanv.db")) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert {name[:-7] for name, *_ in rows} == {"digits-1"} and len({name for name, *_ in rows}) == 1
    found = [(step, round(json.loads(metrics)["hybrid/seed0/train_loss"], 4)) for _, step, metrics in rows]
    assert sorted(found) == [*THREE, THREE[-1]]
