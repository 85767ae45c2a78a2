"""How a training stands: rows that it writes, read from elsewhere, shown in place."""

import contextlib
import itertools
import json
import math
import re
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from qnnkit import cli, runs, workspace
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import Training, lock, state, trainings
from qnnkit.runs import rows as rows_of
from qnnkit.runs.state import State
from qnnkit.runs.state import of_run as read
from tests import forked
from tests.toys import each_epoch, refused

SMALL = {"epochs": 2, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": ["no_quantum"], "threads": 1}
SMALL |= {"train_fraction": 0.2}
CPU = torch.device("cpu")


def test_a_training_tells_how_it_stands(tmp_path):
    run, seen = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL), []
    before = read(run.folder)
    list(runs.train_all(run, on_row=each_epoch(lambda row: seen.append(read(run.folder)))))
    steps = math.ceil(len(run.splits.train) / 32)
    assert (before.state, before.net) == ("waiting", None)
    assert {one.state for one in seen} == {"running"} and len(seen) == 4
    first, last = seen[0], seen[-1]
    assert (first.net, first.number, first.of, first.epochs) == ("hybrid", 1, 2, 2)
    assert (last.net, last.number, last.seed) == ("no_quantum", 2, 0)
    assert first.steps == steps and 1 <= first.step <= steps and first.loss > 0
    assert [one.loss for one in seen] == [row["train_loss"] for row in run.epochs().to_dict("records")]
    for row in run.tested().values():
        assert 1e8 < row["peak_memory"] < 1e11
        assert row["peak_memory"] == pytest.approx(row["peak_ram"], rel=0.01)  # on a CPU the two are one
    end = read(run.folder)
    assert end.state == "trained" and (end.net, end.epoch) == ("no_quantum", 2)


def test_an_interrupted_training_has_stopped_and_keeps_its_peak(tmp_path):
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.train_all(run, on_row=each_epoch(stop))
    assert read(run.folder).state == "stopped"
    [begun] = [row for row in run.rows("metrics") if row["event"] == "begin"]
    run.log("metrics", begun | {"peak_memory": 10**12})
    finals = runs.train_all(run)
    assert [row["peak_memory"] == 10**12 for row in finals] == [True, False]  # of the same net alone
    assert read(run.folder).state == "trained"


# --- what is written ---------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        fake = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1e9 + self.now)
        for module in (trainings, state):
            monkeypatch.setattr(module, "time", fake)


def moment(updates, steps=10, epochs=4, loss=None):
    epoch, step = divmod(updates - 1, steps)
    return {
        "epoch": epoch + 1, "epochs": epochs, "step": step + 1, "steps": steps, "updates": updates,
        "samples": 32, "loss": 1 / updates if loss is None else loss, "learning_rate": 0.1,
    }  # fmt: skip


def reported(tmp_path, net="hybrid", seed=0):
    """A training, of a run of two nets and two seeds."""
    workspace.write_json(tmp_path / "config.json", {"seed": 0, "n_seeds": 2})
    workspace.write_json(tmp_path / "provenance.json", {"nets": ["hybrid", "classical"]})
    (tmp_path / ".train.lock").touch()
    path = tmp_path / "metrics.jsonl"
    run = SimpleNamespace(
        log=lambda kind, row: workspace.append_line(path, row),
        rows=lambda kind: workspace.read_lines(path),
        config=SimpleNamespace(gradient_checkpointing=False, of_net=lambda net: None),
        task=SimpleNamespace(counted="samples"),
        splits=None,
    )
    return Training(run, net, seed, CPU)


def rows(folder):
    return workspace.read_lines(folder / "metrics.jsonl")


def trained_before(folder, net, seed, **facts):
    row = {"event": "test", "net": net, "seed": seed}
    workspace.append_line(folder / "metrics.jsonl", row | facts)


def steps(told, clock, n=11):
    for updates in range(1, n + 1):
        told._update(moment(updates))
        clock.now += 0.5


def test_time_left_and_speed(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    trained_before(tmp_path, "classical", 0)
    steps(reported(tmp_path), clock)
    found = read(tmp_path)
    assert (found.epoch, found.step, rows(tmp_path)[-1]["learning_rate"]) == (2, 1, 0.1)
    assert found.per_second == 64 and (found.number, found.of, found.state) == (1, 4, "stopped")
    assert found.seconds_left == pytest.approx((29 + 2 * 40) * 0.5), "both nets of seed 1 as long as this one"
    monkeypatch.setenv("WORLD_SIZE", "2")  # several processes are as fast as all of them
    steps(reported(tmp_path, seed=1), clock)
    assert read(tmp_path).per_second == 128


def test_a_row_every_few_seconds(tmp_path, monkeypatch):
    clock, told = Clock(monkeypatch), reported(tmp_path)
    for updates in range(1, 10001):
        clock.now += 0.01
        told._update(moment(updates, steps=10000))
    times = [row["time"] for row in rows(tmp_path) if row["event"] == "step"]
    assert len(times) == 20 and all(b - a == pytest.approx(5, abs=0.02) for a, b in itertools.pairwise(times))


def test_a_disk_that_fails_stops_nothing(tmp_path):
    told = reported(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    told._update(moment(1))
    assert (tmp_path / "metrics.jsonl").is_dir()
    (tmp_path / "metrics.jsonl").rmdir()
    reported(tmp_path)._update(moment(1, loss=float("nan")))
    assert rows(tmp_path)[-1]["loss"] is None and read(tmp_path).loss is None


def test_it_tells_at_once_that_a_training_goes_on(tmp_path):
    planted(tmp_path)
    with lock.alone(tmp_path, "train"):
        reported(tmp_path)
        assert rows(tmp_path)[-1]["peak_memory"] >= 700_000_000, "as before it was stopped"
        assert state.line(read(tmp_path)) == f"{tmp_path.name}  running  hybrid, seed 0 (1 of 4)"
    assert read(tmp_path).state == "stopped"


# --- what is read ------------------------------------------------------------------------------------------


def planted(folder, warnings=(), **facts):
    """A run of five trainings that has written these rows, and that nobody holds."""
    (folder / ".train.lock").touch()
    workspace.write_json(folder / "config.json", {"seed": 0, "n_seeds": 1})
    workspace.write_json(folder / "provenance.json", {"nets": ["hybrid", "b", "c", "d", "e"]})
    usual = {
        "net": "hybrid", "seed": 0, "epoch": 3, "epochs": 12, "step": 20, "steps": 34, "updates": 88,
        "loss": 0.5123, "per_second": 1234.5, "peak_memory": 700_000_000, "device": "cpu",
        "time": time.time(),
    }  # fmt: skip
    usual |= facts
    first = usual | {"event": "step", "step": 10, "updates": 78, "time": usual["time"] - 2.968}
    written = [usual | {"event": "begin"}, first, usual | {"event": "step"}]
    written += [usual | {"event": "warning", "sentence": each} for each in warnings]
    content = "".join(json.dumps(each) + "\n" for each in written)
    workspace.write_bytes(folder / "metrics.jsonl", content.encode())
    return folder


def test_a_run_goes_on_while_a_living_process_holds_it(tmp_path):
    planted(tmp_path, time=0.0)  # validation may be long, and a process that lives goes on
    assert read(tmp_path).state == "stopped"
    with forked.holding(tmp_path, "train"):
        assert read(tmp_path).state == "running"
    assert read(tmp_path).state == "stopped"
    (tmp_path / "result.json").write_text("{}")
    assert read(tmp_path).state == "finished"


def test_to_look_takes_no_folder_from_who_works_there(tmp_path):
    planted(tmp_path, time=1.0)
    (tmp_path / ".train.lock").unlink()  # as in a folder that was brought from Drive
    assert read(tmp_path).state == "stopped"
    assert not list(tmp_path.glob(".*.lock")), "who only looks writes nothing"
    with lock.alone(tmp_path, "train"):
        pass
    assert read(tmp_path).state == "stopped"
    with lock.alone(tmp_path, "train", wait=0):
        assert read(tmp_path).state == "running"


def test_where_no_lock_can_be_tried_its_rows_tell(tmp_path):
    planted(tmp_path)
    (tmp_path / ".train.lock").unlink()
    (tmp_path / ".train.lock").mkdir()  # as a folder that may only be read, it cannot be opened to write
    assert read(tmp_path).state == "running"
    planted_again = [row | {"time": 1.0} for row in rows(tmp_path)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in planted_again))
    assert read(tmp_path).state == "stopped"


def test_all_nets_tested_it_has_finished_and_once_it_is_extended_it_has_not(tmp_path):
    planted(tmp_path)
    workspace.write_json(tmp_path / "config.json", {"seed": 0, "n_seeds": 1, "epochs": 4})
    for net in "hybrid", "b", "c", "d", "e":
        assert read(tmp_path).state == "stopped"
        trained_before(tmp_path, net, 0, epochs=4)
    assert read(tmp_path).state == "trained"
    workspace.write_json(tmp_path / "config.json", {"seed": 0, "n_seeds": 1, "epochs": 12})
    assert read(tmp_path).state == "stopped"
    with lock.alone(tmp_path, "train"):
        found = read(tmp_path)
    assert found.state == "running" and found.seconds_left > 4 * 320 * 0.2968
    for net in "hybrid", "b", "c", "d", "e":
        trained_before(tmp_path, net, 0, epochs=12)
    assert read(tmp_path).state == "trained"


@pytest.mark.parametrize("damaged", ["", "{", "[]"])
def test_a_damaged_file_is_no_state(tmp_path, damaged):
    planted(tmp_path)
    (tmp_path / "provenance.json").write_text(damaged)
    found = read(tmp_path)
    assert (found.number, found.net, found.state) == (None, "hybrid", "stopped") and state.line(found)
    (tmp_path / "metrics.jsonl").write_text(damaged)
    assert read(tmp_path).state == "waiting"


def test_a_mirrored_run_is_read_where_it_is_mirrored(tmp_path):
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    for epoch in (1, 2):
        planted(local, epoch=epoch)
        with Mirror(local, remote):
            pass
    assert read(remote).epoch == 2 and read(remote).state == "running"
    planted(local, time=1.0)
    with Mirror(local, remote):
        pass
    assert read(remote).state == "stopped", "its last row is old"


def test_a_followed_run_is_read_once_and_a_replaced_one_again(tmp_path, monkeypatch):
    run, read_bytes = rows_of.Followed(planted(tmp_path)), []
    assert [row["event"] for row in run.look()] == ["begin", "step", "step"] and run.look() == []
    row = {"event": "epoch", "net": "hybrid", "seed": 0, "epoch": 1}
    workspace.append_line(tmp_path / "metrics.jsonl", row)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "epoch", "net": "b"')  # a kill, or a look amid a write
    parse = workspace.parse_lines
    monkeypatch.setattr(workspace, "parse_lines", lambda added: read_bytes.append(len(added)) or parse(added))
    assert [row["event"] for row in run.look()] == ["epoch"] and read_bytes[0] < 80
    workspace.append_line(tmp_path / "metrics.jsonl", {"event": "test", "net": "b", "seed": 0})
    assert [row["event"] for row in run.look()] == ["test"] and len(run.rows) == 5
    planted(tmp_path)  # as a mirror does it
    assert len(run.look()) == len(run.rows) == 3


def test_a_row_without_an_event_or_a_net_is_none(tmp_path):
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)
    of_net = {"net": "b", "seed": 0}
    damaged = {"event": "epoch", **of_net}, {"event": "step", **of_net, "time": 1.0, "epoch": "2"}
    for row in ({**of_net, "epoch": 1}, {"event": "epoch", "epoch": 1}, {}, *damaged):
        run.log("metrics", row)
    assert run.rows("metrics") == [] and read(run.folder).state == "waiting"
    assert len(run.epochs()) == len(run.finals()) == 0


def test_facts_that_are_not_there(tmp_path):
    (planted(tmp_path) / "failed.json").write_text("[]")
    assert read(tmp_path).state != "failed"
    (tmp_path / "failed.json").write_text('{"odd": 1}')
    assert (read(tmp_path).state, read(tmp_path).error) == ("failed", None)
    workspace.write_json(tmp_path / "batch.json", {"runs": [{"id": "a"}]})
    with pytest.raises(ValueError, match=r"must hold a whole batch\.json.*Run the same qnnkit batch again"):
        state.of_batch(tmp_path)


def test_a_run_that_has_failed_says_why_and_where(tmp_path):
    (planted(tmp_path) / "notebooks").mkdir()
    (tmp_path / "notebooks" / "03_train.failed.ipynb").touch()
    state.write_failure(tmp_path, "failed", "It diverged.")
    found = read(tmp_path)
    assert (found.state, found.error) == ("failed", "It diverged.")
    assert found.notebook == tmp_path / "notebooks" / "03_train.failed.ipynb"
    with lock.alone(tmp_path, "chain"):
        assert read(tmp_path).state == "running", "somebody has started it again"
    (tmp_path / "result.json").write_text("{}")
    assert read(tmp_path).state == "finished"


# --- what is shown -----------------------------------------------------------------------------------------


def test_a_line_of_words(tmp_path):
    with lock.alone(tmp_path, "train"):
        assert state.line(read(planted(tmp_path))) == (
            f"{tmp_path.name}  running  hybrid, seed 0 (1 of 5)  epoch 3/12, step 20/34  loss 0.5123  "
            "1,234 samples/s  9 min 39 s left"
        )
    assert state.line(State(tmp_path, "waiting")) == f"{tmp_path.name}  waiting"


def test_watching_says_each_line_once_waits_while_it_trains_and_ends_with_it(tmp_path):
    planted(tmp_path, warnings=["Steps take long."], epoch=1)
    said, held = [], contextlib.ExitStack()

    def echo(sentence):
        said.append(sentence)
        planted(tmp_path, warnings=["Steps take long."], epoch=len(said))
        if len(said) == 4:
            held.close()

    with held:
        held.enter_context(lock.alone(tmp_path, "train"))
        [found] = runs.watch(tmp_path, [].append, once=True)
        assert found.state == "running"
        [found] = runs.watch(tmp_path, echo, every=0.01)
    assert found.state == "stopped" and said[1] == "  ! Steps take long." and "stopped" in said[-1]
    told = [sentence for sentence in said if "epoch" in sentence]
    assert [re.search(r"epoch (\d+)/12", each)[1] for each in told] == ["1", "2", "3", "4"]


def batch_of(folder, *names):
    """Lists runs in the file of a batch; their folders."""
    listed = [{"id": name, "folder": f"runs/{name}", "settings": {}} for name in names]
    workspace.write_json(folder / "batch.json", {"name": "b", "recipe": "r", "runs": listed})
    return [workspace.make_folder(folder / "runs" / name) for name in names]


def test_a_batch_is_watched_until_every_planned_run_has_ended(tmp_path, monkeypatch, capsys):
    places, session = batch_of(tmp_path, "one", "two", "three"), tmp_path / "session.json"
    planted(places[0], net="net of one")
    monkeypatch.setattr(sys, "argv", ["qnnkit", "watch", str(tmp_path), "--once"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    [line] = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0 and "net of one" in line, "what has not begun is no line"
    said = []
    workspace.write_json(session, {"id": "one", "pruned": []})

    def echo(sentence):
        said.append(sentence)
        if len(said) == 1:
            (places[0] / "result.json").write_text("{}")
        elif len(said) == 2:
            planted(places[1])
        elif len(said) == 3:
            (places[1] / "result.json").write_text("{}")
            state.write_failure(places[2], "failed", "Odd.")
            session.unlink()

    found = runs.watch(tmp_path, echo, every=0.01)
    assert [run.state for run in found] == ["finished", "finished", "failed"]


def test_a_batch_whose_sampler_proposes_runs_is_watched_to_its_end(tmp_path):
    session, said = tmp_path / "session.json", []
    workspace.write_json(session, {"id": "one", "pruned": []})

    def plan(*names):
        workspace.write_json(planted(batch_of(tmp_path, *names)[-1]) / "result.json", {})

    def echo(sentence):
        said.append(sentence)
        plan("one", "two") if len(said) == 1 else session.unlink()

    plan("one")
    found = runs.watch(tmp_path, echo, every=0.01)
    assert len(said) == 2 and [run.state for run in found] == ["finished", "finished"]


def test_a_run_that_nobody_works_on_is_not_waited_for(tmp_path):
    for error, asked in ((ValueError, {"every": 0}), (FileNotFoundError, {})):
        with refused("every" if asked else "run_dir", error):
            runs.watch(tmp_path, **asked)
    (tmp_path / "config.json").write_text("{}")
    for work in ("chain", "train"):
        (tmp_path / f".{work}.lock").touch()  # as a kill leaves it
    assert [status.state for status in runs.watch(tmp_path, str)] == ["waiting"]
