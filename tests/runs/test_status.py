"""The status of a training: the rows that it writes, reading them elsewhere, and the live display."""

import contextlib
import itertools
import json
import math
import time
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from qnnkit import cli, runs, workspace
from qnnkit.runs import Training, lock, state, trainings
from qnnkit.runs import rows as files
from qnnkit.runs.state import of_run as read
from qnnkit.stats import ACCURACY
from tests import forked
from tests.same import raises
from tests.toys import each_epoch, refused

SMALL = {"epochs": 2, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": ["no_quantum"], "threads": 1}
SMALL |= {"train_fraction": 0.2}


@pytest.fixture
def begun(tmp_path):
    """A run of two nets of one seed."""
    return runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)


def test_a_training_reports_its_status_and_an_interrupted_one_keeps_its_peak(begun):
    seen = []
    assert (read(begun.folder).state, read(begun.folder).row) == ("waiting", {})

    with pytest.raises(KeyboardInterrupt):
        runs.train_all(begun, on_row=each_epoch(raises()))
    assert read(begun.folder).state == "stopped"
    begun.log("metrics", begun.rows("metrics")[0] | {"peak_memory": 10**12})
    finals = runs.train_all(begun, on_row=each_epoch(lambda row: seen.append(read(begun.folder))))
    assert [(one.state, one.row["net"]) for one in seen[::2]] == [("running", net) for net in begun.nets]
    row = seen[0].row
    assert (row["seed"], row["epochs"], row["steps"]) == (0, 2, math.ceil(len(begun.splits.train) / 32))
    assert 1 <= row["step"] <= row["steps"]
    assert [one.row["loss"] for one in seen] == runs.frame(begun, "epoch")["train_loss"].tolist()
    assert [row["peak_memory"] == 10**12 for row in finals] == [True, False]  # of the same net only
    assert 1e8 < finals[1]["peak_memory"] < 1e11
    end = read(begun.folder)
    assert (end.state, end.row["net"], end.row["epoch"]) == ("trained", "no_quantum", 2)


# --- writing -----------------------------------------------------------------------------------------------


def test_a_row_with_the_speed_every_few_seconds_even_if_the_disk_fails(begun, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 1e9 + clock.now)
    monkeypatch.setattr(trainings, "time", fake)

    def update(training, times, **options):
        for _ in range(times):
            clock.now += 0.01
            training._update({"samples": 32, "loss": 0.5, **options})
        return [row for row in begun.rows("metrics") if row["event"] == "step"]

    place = dict.fromkeys(("epoch", "epochs", "step", "steps", "updates"), 1)
    rows = update(Training(begun, "hybrid", 0, torch.device("cpu")), 10000, **place)
    assert len(rows) == 20 and [row["per_second"] for row in rows[1:]] == pytest.approx([3200] * 19, rel=0.01)
    for one, other in itertools.pairwise(rows):
        assert other["time"] - one["time"] == pytest.approx(5, abs=0.02)
    monkeypatch.setenv("WORLD_SIZE", "2")  # the speed of several processes is their sum
    other = Training(begun, "hybrid", 1, torch.device("cpu"))
    assert update(other, 1000, **place)[-1]["per_second"] == pytest.approx(6400, rel=0.01)
    (begun.folder / "metrics.jsonl").unlink()
    (begun.folder / "metrics.jsonl").mkdir()
    assert update(other, 1000, **place) == []
    (begun.folder / "metrics.jsonl").rmdir()
    assert update(other, 1000, **place, loss=float("nan"))[-1]["loss"] is None


# --- reading -----------------------------------------------------------------------------------------------

NETS = ["hybrid", "b", "c", "d", "e"]


def planted(folder, **facts):
    """A run of five trainings that has written these rows and that no process holds."""
    (folder / ".train.lock").touch()
    workspace.write_json(folder / "config.json", {"seed": 0, "n_seeds": 1, "epochs": 12})
    workspace.write_json(folder / "provenance.json", {"nets": NETS})
    usual = {"net": "hybrid", "seed": 0, "epoch": 3, "epochs": 12, "step": 20, "steps": 34, "updates": 88}
    usual |= {"loss": 0.5123, "per_second": 1234.5, "peak_memory": 7e8, "device": "cpu", "time": time.time()}
    usual |= facts
    first = usual | {"event": "step", "step": 10, "updates": 78, "time": usual["time"] - 2.968}
    written = [usual | {"event": "begin"}, first, usual | {"event": "step"}]
    content = "".join(json.dumps(each) + "\n" for each in written)
    workspace.write_bytes(folder / "metrics.jsonl", content.encode())
    return folder


def test_without_a_lock_the_rows_decide_and_reading_creates_no_lock(tmp_path):
    """As in a folder from Drive, or in one that is read only."""
    for age, expected in ((0, "running"), (1e6, "stopped")):
        planted(tmp_path, time=time.time() - age)
        (tmp_path / ".train.lock").unlink()
        assert read(tmp_path).state == expected and not list(tmp_path.glob(".*.lock"))
        (tmp_path / ".train.lock").mkdir()
        assert read(tmp_path).state == expected
        (tmp_path / ".train.lock").rmdir()


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"nets": 3, "runs": 3, "state": 3}'])
def test_a_damaged_file_is_ignored(tmp_path, damaged):
    with refused("folder", FileNotFoundError):
        state.of_batch(tmp_path)
    for name in ("provenance.json", "failed.json"):
        (planted(tmp_path) / name).write_text(damaged)
        run = read(tmp_path)
        assert (run.row["net"], run.state) == ("hybrid", "stopped") and state.line(run)
    (tmp_path / "provenance.json").write_text('{"score": {}}')
    assert read(tmp_path).score == ACCURACY
    (tmp_path / "batch.json").write_text(damaged)
    with pytest.raises(ValueError, match=r"batch\.json"):
        state.of_batch(tmp_path)
    workspace.write_json(tmp_path / "batch.json", {"runs": [{"id": "a", "folder": "b", "settings": 1}]})
    with refused("folder"):
        state.of_batch(tmp_path)


def test_only_complete_rows_are_read_once_and_again_if_the_file_is_replaced(tmp_path, monkeypatch):
    path, added, parse = planted(tmp_path) / "metrics.jsonl", [], workspace.parse_lines
    monkeypatch.setattr(workspace, "parse_lines", lambda lines: added.append(lines) or parse(lines))

    def events():
        return [row["event"] for row in files.read(tmp_path)]

    assert events() == events() == ["begin", "step", "step"] and len(added) == 1
    line = b'{"event": "epoch", "net": "b", "seed": 0, "epoch": 1}\n'
    with path.open("ab") as file:
        file.write(line + b'{"event": "begin", "net": "b", ')  # a kill, or a read during a write
    assert events()[3:] == ["epoch"] and added[1:] == [line]
    with path.open("ab") as file:
        file.write(
            b'"seed": 0}\n{"event\n\xff{}\n{"net": "b", "seed": 0}\n{"event": "epoch", "epoch": 1}\n{}\n'
        )
        file.write(b'{"event": "step", "net": "b", "seed": 0, "time": 1.0, "epoch": "2"}\n')
        file.write(b'{"event": "test", "net": "b", "seed": 0}\n{"event": "begin", "net": {}, "seed": 0}\n')
    with pytest.warns(UserWarning, match=r"metrics.jsonl` has 2 damaged lines"):
        assert events()[4:] == ["begin"]
    planted(tmp_path)  # as a mirror does
    assert len(events()) == 3


def test_a_failed_run_says_why_until_a_process_resumes_it(tmp_path):
    (planted(tmp_path, time=0.0) / "failed.json").write_text('{"odd": 1}')
    assert (read(tmp_path).state, read(tmp_path).error) == ("failed", None)
    state.write_failure(tmp_path, "failed", "It diverged.")
    assert (read(tmp_path).state, read(tmp_path).error) == ("failed", "It diverged.")
    for work in ("chain", "train"):
        with forked.holding(tmp_path, work):  # validation may take long, and a live process continues
            assert read(tmp_path).state == "running"
    for result, expected in (('{"nets": []}', ("finished", None)), ("{", ("failed", state.DAMAGED))):
        (tmp_path / "result.json").write_text(result)
        assert (read(tmp_path).state, read(tmp_path).error) == expected


# --- display -----------------------------------------------------------------------------------------------


def test_the_status_line(tmp_path):
    with lock.alone(tmp_path, "train"):
        assert state.line(read(planted(tmp_path))) == (
            f"{tmp_path.name}  running  hybrid, seed 0  epoch 3/12, step 20/34  loss 0.5123  "
            "1,234 samples/s  10 min left"
        )
    assert state.line(state.State(tmp_path, "running", seconds_left=-9.0)) == f"{tmp_path.name}  running"


def batch_of(folder, *names):
    """Lists runs in the file of a batch; returns their folders."""
    listed = [{"id": name, "folder": f"runs/{name}", "settings": {}} for name in names]
    workspace.write_json(folder / "batch.json", {"name": "b", "recipe": "r", "runs": listed})
    return [workspace.make_folder(folder / "runs" / name) for name in names]


def test_a_batch_is_watched_until_no_run_is_active_or_planned(tmp_path, monkeypatch):
    """Each line is printed once, also for runs that a sampler proposes; waiting runs have no line."""
    monkeypatch.setattr(state, "EVERY", 0.01)
    places, session, said = batch_of(tmp_path, "1", "2"), tmp_path / "session.json", []
    planted(places[0], net="net of 1")
    [line] = CliRunner().invoke(cli.app, ["watch", str(tmp_path), "--once"]).output.splitlines()
    assert "net of 1" in line
    workspace.write_json(session, {"id": "one", "pruned": []})

    def echo(sentence):
        said.append(sentence)
        if len(said) == 1:
            (places[0] / "result.json").write_text('{"nets": []}')
            places[:] = batch_of(tmp_path, "1", "2", "3")
        elif len(said) == 2:
            state.write_failure(places[2], "failed", "Odd.")
            stack.enter_context(lock.alone(planted(places[1]), "train"))
            (tmp_path / ".batch.lock").touch()  # as a kill leaves it, with the session
        elif "running" in sentence:  # only its lock shows it
            stack.close()

    with contextlib.ExitStack() as stack:
        states = runs.watch(tmp_path, echo)
    assert [run.state for run in states] == ["finished", "stopped", "failed"]
    assert len(said) == 5 == len({*said})
