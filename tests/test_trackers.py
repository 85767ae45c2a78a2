"""qnnkit.runs.trackers: rows arrive in the trackers themselves; one that is down costs training nothing."""

import json
import os
import re
import signal
import socket
import sqlite3
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from qnnkit.runs import trackers
from qnnkit.runs.trackers import TRACKERS, Trackers

AT_ONCE = 0.5  # seconds: what a call of `log` may take, at most, on a busy machine
LEFT_OUT = (
    r"Tracker `{}` is left out from here on: .*{}.* Training goes on, and metrics.jsonl has every row\. "
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder in a workspace of its own, where no variable names a tracker."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr(trackers, "START", 60.0)  # a busy machine decides nothing
    monkeypatch.setattr(trackers, "LEAVE", 60.0)
    path = tmp_path / "runs" / "digits-1"
    path.mkdir(parents=True)
    return path


def begin(folder, *names, **config):
    return Trackers(names, folder, folder.name, "digits_quanv", {"epochs": 3, "data_dir": None} | config)


def train(live, epochs=range(1, 4)):
    """Two nets; returns how long the longest call took."""
    longest = 0.0
    for net in ("hybrid", "classical"):
        for epoch in epochs:
            row = {"event": "epoch", "net": net, "seed": 0, "epoch": epoch, "train_loss": 1 / epoch}
            row |= {"best": True, "gradient_norm": None, "validation_loss": float("nan")}
            start = time.perf_counter()
            live.log(row, step=epoch, prefix=f"{net}/seed0")
            longest = max(longest, time.perf_counter() - start)
    return longest


@contextmanager
def one_warning(name, why):
    """Exactly one, on this tracker; it says why and what to do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(each.message) for each in caught]
    assert len(told) == 1, told
    found = re.match(LEFT_OUT.format(name, why), told[0])
    assert found and told[0][found.end() :], told[0]


def scalars(folder):
    """What TensorBoard reads: tag -> [(step, value)]."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


THREE = [(1, 1.0), (2, 0.5), (3, 0.3333)]


# --- names -------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean 'tensorboard'.* choices are tensorboard, mlflow, "):
        Trackers(["tensorbord"], tmp_path, "run", "project", {})


def test_every_name_is_one_of_accelerates_and_has_a_next_step():
    from accelerate import tracking

    assert set(TRACKERS) <= set(tracking.LOGGER_TYPE_TO_CLASS) and set(trackers.STEPS) == set(TRACKERS)


def test_no_trackers_start_no_process(folder):
    with begin(folder) as live:
        assert train(live) < AT_ONCE and live.process is None
    assert list(folder.iterdir()) == []


def test_only_the_first_process_of_a_training_sends(folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with begin(folder, "tensorboard") as live:
        train(live)
        assert live.process is None
    assert list(folder.iterdir()) == []


def test_what_is_not_installed_is_told_once_with_what_to_type(folder, monkeypatch):
    monkeypatch.setattr(trackers.util, "find_spec", lambda name: None)
    with one_warning("wandb", "it is not installed"), begin(folder, "wandb") as live:
        train(live)
        assert live.process is None


def test_a_folder_of_a_trackers_name_is_no_package(tmp_path, monkeypatch):
    """W&B writes to `wandb/` in the workspace, from where Python could import it as an empty package."""
    (tmp_path / "some_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert trackers.util.find_spec("some_tracker") and not trackers._installed("some_tracker")


# --- TensorBoard -------------------------------------------------------------------------------------------


def test_tensorboard_reads_back_the_numbers(folder):
    pytest.importorskip("tensorboard")
    from accelerate.state import PartialState

    before, environment = dict(PartialState._shared_state), dict(os.environ)
    with begin(folder, "tensorboard", controls=["classical", "no_entanglement"]) as live:
        assert train(live) < AT_ONCE
    assert scalars(folder) == {f"{net}/seed0/train_loss": THREE for net in ("hybrid", "classical")}
    [settings] = folder.glob("tensorboard/*/hparams.yml")
    assert "controls: classical, no_entanglement" in settings.read_text()
    assert dict(PartialState._shared_state) == before and dict(os.environ) == environment
    assert live.process is not None and live.process.returncode is not None, "it has ended"


def test_a_resumed_run_goes_on_in_tensorboard(folder):
    pytest.importorskip("tensorboard")
    with begin(folder, "tensorboard") as live:
        train(live, range(1, 3))
    with begin(folder, "tensorboard", epochs=5) as live:
        train(live, range(2, 4))  # step 2 twice: after a kill before its checkpoint
    found = scalars(folder)["hybrid/seed0/train_loss"]
    assert sorted(set(found)) == THREE
    assert len(list(folder.glob("tensorboard/*/hparams.yml"))) == 1, "the settings are told once"


# --- trackers that are down --------------------------------------------------------------------------------


def test_a_tracker_that_cannot_write_is_left_out(folder):
    pytest.importorskip("tensorboard")
    (folder / "tensorboard").write_text("a file is in the way")
    with one_warning("tensorboard", "FileExistsError"), begin(folder, "tensorboard") as live:
        assert train(live) < AT_ONCE
    assert "Traceback" in (folder / "trackers.log").read_text()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that is read-only to root too")
def test_a_read_only_run_folder():
    pytest.importorskip("tensorboard")
    with one_warning("tensorboard", "FileNotFoundError"), begin(Path("/proc"), "tensorboard") as live:
        assert train(live) < AT_ONCE


def test_a_stopped_process_neither_slows_training_nor_keeps_it(folder, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(trackers, "LEAVE", 0.5)
    monkeypatch.setattr(trackers, "START", 0.5)
    with one_warning("tensorboard", "it had not finished [0-2] s after the training"):
        with begin(folder, "tensorboard") as live:
            os.kill(live.process.pid, signal.SIGSTOP)
            assert train(live) < AT_ONCE
            start = time.perf_counter()
        assert time.perf_counter() - start < 3
    assert live.process.returncode == -signal.SIGKILL


def test_a_tracker_that_takes_no_more_rows_is_left_out(folder, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(trackers, "ROWS", 10)
    with one_warning("tensorboard", "they take no more rows"), begin(folder, "tensorboard") as live:
        os.kill(live.process.pid, signal.SIGSTOP)
        assert train(live, range(1, 2000)) < AT_ONCE
        assert live.process.wait(timeout=5) == -signal.SIGKILL, "nothing waits for it to wake"


def test_a_crashed_process_is_told_while_training_goes_on(folder):
    pytest.importorskip("tensorboard")
    with one_warning("tensorboard", "its process ended with status -9"), begin(folder, "tensorboard") as live:
        os.kill(live.process.pid, signal.SIGKILL)
        live.reader.join()
        train(live)
        train(live)


def test_no_process_no_tracker(folder, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(trackers.sys, "executable", str(folder / "no python"))
    with one_warning("tensorboard", "no process can be started"), begin(folder, "tensorboard") as live:
        train(live)


def test_where_warnings_are_errors_training_goes_on_too(folder, monkeypatch, capsys):
    monkeypatch.setattr(trackers.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with begin(folder, "mlflow") as live:
            train(live)
    assert "Tracker `mlflow` is left out" in capsys.readouterr().err


def test_an_error_of_the_training_is_not_hidden(folder):
    pytest.importorskip("tensorboard")
    with pytest.raises(FloatingPointError, match="not finite"), begin(folder, "tensorboard") as live:
        train(live)
        raise FloatingPointError("The training loss is not finite.")
    assert scalars(folder)["hybrid/seed0/train_loss"] == THREE, "what came before it has arrived"


# --- MLflow ------------------------------------------------------------------------------------------------


def mlflow_rows(home, what, table):
    with sqlite3.connect(home / "mlflow.db") as database:
        return database.execute(f"select {what} from {table}").fetchall()


@pytest.mark.slow
def test_mlflow_keeps_a_resumed_run_as_one(folder, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    with begin(folder, "mlflow") as live:
        assert train(live, range(1, 3)) < AT_ONCE
    with begin(folder, "mlflow", device="cpu") as live:  # placement may differ; MLflow takes no other value
        train(live, range(2, 4))
    [(run_id, name, status)] = mlflow_rows(tmp_path, "run_uuid, name, status", "runs")
    assert json.loads((folder / "trackers.json").read_text())["mlflow"]["run_id"] == run_id
    assert (name, status) == ("digits-1", "FINISHED")
    assert ("digits_quanv",) in mlflow_rows(tmp_path, "name", "experiments")
    assert ("epochs", "3") in mlflow_rows(tmp_path, "key, value", "params")
    rows = mlflow_rows(tmp_path, "step, round(value, 4), key", "metrics")
    for net in ("hybrid", "classical"):
        assert sorted({(step, value) for step, value, key in rows if key.startswith(net)}) == THREE

    (tmp_path / "mlflow.db").unlink()  # what trackers.json names is gone: it begins anew
    with begin(folder, "mlflow") as live:
        train(live)
    [(again,)] = mlflow_rows(tmp_path, "run_uuid", "runs")
    assert again != run_id


@pytest.mark.slow
def test_runs_that_begin_at_once_share_one_new_database(folder, tmp_path):
    """As the first runs of a batch do: MLflow by itself leaves half a database."""
    pytest.importorskip("mlflow")
    others = [folder.with_name(f"digits-{n}") for n in (2, 3)]
    with ExitStack() as stack:
        for each in (folder, *others):
            each.mkdir(exist_ok=True)
            train(stack.enter_context(begin(each, "mlflow")))
    found = mlflow_rows(tmp_path, "name, status", "runs")
    assert sorted(found) == [(f"digits-{n}", "FINISHED") for n in (1, 2, 3)]
    assert len(mlflow_rows(tmp_path, "*", "metrics")) == 3 * 6


def test_mlflow_where_nothing_listens_is_told_and_harms_no_other(folder, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with one_warning("mlflow", "127.0.0.1:9"), begin(folder, "mlflow", "tensorboard") as live:
        assert train(live) < AT_ONCE
    assert scalars(folder)["classical/seed0/train_loss"] == THREE


def test_mlflow_whose_server_never_answers_does_not_stall(folder, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setattr(trackers, "START", 4.0)
    monkeypatch.setattr(trackers, "LEAVE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        start = time.perf_counter()
        with one_warning("mlflow", "it had not finished"), begin(folder, "mlflow") as live:
            assert train(live) < AT_ONCE
        assert time.perf_counter() - start < 7


# --- W&B and trackio ---------------------------------------------------------------------------------------


def test_wandb_without_a_key_is_kept_offline_and_says_so(folder, tmp_path):
    pytest.importorskip("wandb")
    told = "found no key, so this run is kept offline in .*wandb login"
    with pytest.warns(UserWarning, match=told), begin(folder, "wandb") as live:
        assert train(live) < AT_ONCE
    [kept] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = kept.read_bytes()
    assert b"hybrid/seed0/train_loss" in content and b"classical/seed0/step" in content
    name = json.loads((folder / "trackers.json").read_text())["wandb"]["id"]
    assert kept.name == f"run-{name}.wandb"


def test_wandb_with_a_key_and_no_network(folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(trackers, "START", 5.0)
    monkeypatch.setattr(trackers, "LEAVE", 1.0)
    with one_warning("wandb", ""), begin(folder, "wandb") as live:
        assert train(live) < AT_ONCE


def test_wandb_mode_is_honoured(folder, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with begin(folder, "wandb") as live:
        train(live)
    assert not list(tmp_path.glob("wandb/*run-*"))


def test_trackio_keeps_its_numbers_in_the_workspace(folder, tmp_path):
    pytest.importorskip("trackio")
    with begin(folder, "trackio") as live:
        assert train(live) < AT_ONCE
    with sqlite3.connect(tmp_path / "trackio" / "digits_quanv.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    found = [(step, json.loads(metrics).get("hybrid/seed0/train_loss")) for _, step, metrics in rows]
    assert {run for run, *_ in rows} == {"digits-1"}
    assert [(step, round(value, 4)) for step, value in found if value is not None] == THREE
