"""How a training stands: rows that it writes, read from elsewhere, shown in place."""

import contextlib
import io
import itertools
import json
import math
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from qnnkit import cli, runs, workspace
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import journal, lock, state, watching
from qnnkit.runs import rows as rows_of
from qnnkit.runs.journal import Journal
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
    assert first.device == "cpu" and first.age < 60
    assert 1e8 < first.memory <= first.peak_memory < 1e11
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
        for module in (journal, state):
            monkeypatch.setattr(module, "time", fake)


def moment(updates, steps=10, epochs=4, loss=None):
    epoch, step = divmod(updates - 1, steps)
    return {
        "epoch": epoch + 1, "epochs": epochs, "step": step + 1, "steps": steps, "updates": updates,
        "samples": 32, "loss": 1 / updates if loss is None else loss, "learning_rate": 0.1,
    }  # fmt: skip


def reported(tmp_path, net="hybrid", seed=0):
    """The journal of a training, of a run of two nets and two seeds."""
    workspace.write_json(tmp_path / "config.json", {"seed": 0, "n_seeds": 2})
    workspace.write_json(tmp_path / "provenance.json", {"nets": ["hybrid", "classical"]})
    (tmp_path / ".train.lock").touch()
    path = tmp_path / "metrics.jsonl"
    run = SimpleNamespace(
        log=lambda kind, row: workspace.append_line(path, row),
        rows=lambda kind: workspace.read_lines(path),
        config=SimpleNamespace(gradient_checkpointing=False),
        task=SimpleNamespace(counted="samples"),
        splits=None,
    )
    return Journal(run, net, seed, CPU)


def rows(folder):
    return workspace.read_lines(folder / "metrics.jsonl")


def trained_before(folder, net, seed, **facts):
    row = {"event": "test", "net": net, "seed": seed, "epochs_trained": 4, "seconds_per_epoch": 3.0}
    workspace.append_line(folder / "metrics.jsonl", row | facts)


def steps(told, clock, n=11):
    for updates in range(1, n + 1):
        told.update(moment(updates))
        clock.now += 0.5


def test_time_left_and_speed(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    trained_before(tmp_path, "classical", 0)
    steps(reported(tmp_path), clock)
    found = read(tmp_path)
    assert (found.epoch, found.step, rows(tmp_path)[-1]["learning_rate"]) == (2, 1, 0.1)
    assert found.per_second == 64
    assert found.seconds_left_net == pytest.approx(29 * 0.5)
    # hybrid of seed 1 as long as this one, classical of seed 1 as long as that of seed 0
    assert found.seconds_left_run == pytest.approx(29 * 0.5 + 40 * 0.5 + 12)
    assert (found.number, found.of, found.state) == (1, 4, "stopped")
    for net in ("hybrid", "classical"):
        trained_before(tmp_path, net, 0, epochs_trained=2)
    steps(reported(tmp_path, seed=1), clock)
    found = read(tmp_path)
    assert found.seconds_left_run - found.seconds_left_net == pytest.approx(2 * 3.0), "it stopped early"
    monkeypatch.setenv("WORLD_SIZE", "2")  # several processes are as fast as all of them
    steps(reported(tmp_path, seed=1), clock)
    assert read(tmp_path).per_second == 128


def test_a_row_every_few_seconds(tmp_path, monkeypatch):
    clock, told = Clock(monkeypatch), reported(tmp_path)
    for updates in range(1, 10001):
        clock.now += 0.01
        told.update(moment(updates, steps=10000))
    times = [row["time"] for row in rows(tmp_path) if row["event"] == "step"]
    assert len(times) == 20 and all(b - a == pytest.approx(5, abs=0.02) for a, b in itertools.pairwise(times))


def test_a_disk_that_fails_stops_nothing(tmp_path):
    told = reported(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    told.update(moment(1))
    assert (tmp_path / "metrics.jsonl").is_dir()
    (tmp_path / "metrics.jsonl").rmdir()
    reported(tmp_path).update(moment(1, loss=float("nan")))
    assert rows(tmp_path)[-1]["loss"] is None and read(tmp_path).loss is None


def test_it_tells_at_once_that_a_training_goes_on(tmp_path):
    planted(tmp_path)
    with lock.alone(tmp_path, "train"):
        reported(tmp_path)
        found = read(tmp_path)
        assert (found.state, found.net, found.step) == ("running", "hybrid", None)
        assert found.peak_memory >= 700_000_000, "as before it was stopped"
        start = f"{tmp_path.name}  running  hybrid, seed 0 (1 of 4)  memory "
        assert watching.line(found).startswith(start) and found.memory > 1e8
    assert read(tmp_path).state == "stopped"


# --- what is read ------------------------------------------------------------------------------------------


def planted(folder, warnings=(), **facts):
    """A run of five trainings that has written these rows, and that nobody holds."""
    (folder / ".train.lock").touch()
    workspace.write_json(folder / "config.json", {"seed": 0, "n_seeds": 1})
    workspace.write_json(folder / "provenance.json", {"nets": ["hybrid", "b", "c", "d", "e"]})
    usual = {
        "net": "hybrid", "seed": 0, "epoch": 3, "epochs": 12, "step": 20, "steps": 34, "updates": 88,
        "loss": 0.5123, "per_second": 1234.5, "counted": "samples", "memory": 610_000_000,
        "peak_memory": 700_000_000, "device": "cpu", "time": time.time(),
    }  # fmt: skip
    usual |= facts
    first = usual | {"event": "step", "step": 10, "updates": 78}
    if isinstance(usual["time"], float):
        first["time"] = usual["time"] - 2.968  # for ten updates
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
    assert found.state == "running" and found.seconds_left_run > 4 * found.seconds_left_net
    for net in "hybrid", "b", "c", "d", "e":
        trained_before(tmp_path, net, 0, epochs=12)
    assert read(tmp_path).state == "trained"


@pytest.mark.parametrize("damaged", ["", "{", "[]\n", '{"time": "now", "event": "begin"}\n', "null\n"])
def test_a_damaged_file_is_no_status(tmp_path, damaged):
    planted(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(damaged)
    assert read(tmp_path).state == "waiting"


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"nets": 3}'])
def test_a_damaged_provenance_hides_only_which_training_it_is(tmp_path, damaged):
    planted(tmp_path)
    (tmp_path / "provenance.json").write_text(damaged)
    found = read(tmp_path)
    assert (found.number, found.net, found.state) == (None, "hybrid", "stopped") and watching.line(found)


def test_values_of_the_wrong_kind_are_left_out(tmp_path):
    found = read(planted(tmp_path, loss="low", net=3, memory=True))
    assert (found.loss, found.net, found.memory) == (None, None, None)
    assert watching.line(found)
    endless = read(planted(tmp_path, per_second=float("inf"), memory=float("nan")))
    assert watching.line(endless) and (endless.per_second, endless.memory) == (None, None)


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
    workspace.append_line(tmp_path / "metrics.jsonl", {"event": "epoch", "net": "hybrid", "seed": 0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "epoch", "net": "b"')  # a kill, or a look amid a write
    parse = workspace.parse_lines
    monkeypatch.setattr(workspace, "parse_lines", lambda added: read_bytes.append(len(added)) or parse(added))
    assert [row["event"] for row in run.look()] == ["epoch"] and read_bytes[0] < 60
    workspace.append_line(tmp_path / "metrics.jsonl", {"event": "test", "net": "b", "seed": 0})
    assert [row["event"] for row in run.look()] == ["test"] and len(run.rows) == 5
    planted(tmp_path)  # as a mirror does it
    assert len(run.look()) == len(run.rows) == 3


@pytest.mark.parametrize("row", [{"net": "b", "seed": 0, "epoch": 1}, {"event": "epoch", "epoch": 1}, {}])
def test_a_row_without_an_event_or_a_net_is_none(tmp_path, row):
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)
    run.log("metrics", row)
    assert run.rows("metrics") == rows_of.read(run.folder) == [] and read(run.folder).state == "waiting"
    assert len(run.epochs()) == len(run.finals()) == 0


def test_a_run_that_has_failed_says_why_and_where(tmp_path):
    (planted(tmp_path) / "notebooks").mkdir()
    (tmp_path / "notebooks" / "03_train.failed.ipynb").touch()
    state.write_failure(tmp_path, "failed", "It diverged.")
    found = read(tmp_path)
    assert (found.state, found.error) == ("failed", "It diverged.")
    assert found.notebook == tmp_path / "notebooks" / "03_train.failed.ipynb"
    with lock.alone(tmp_path, "chain"):
        (tmp_path / "notebooks" / "03_train.running.ipynb").touch()
        found = read(tmp_path)
        assert (found.state, found.doing) == ("running", "03_train"), "somebody has started it again"
    (tmp_path / "result.json").write_text("{}")
    assert read(tmp_path).state == "finished"


# --- what is shown -----------------------------------------------------------------------------------------


def test_a_line_of_words(tmp_path):
    with lock.alone(tmp_path, "train"):
        found = read(planted(tmp_path))
        assert watching.line(found) == (
            f"{tmp_path.name}  running  hybrid, seed 0 (1 of 5)  epoch 3/12, step 20/34  loss 0.5123  "
            "1,234 samples/s  1 min 35 s, in all 9 min 39 s left  memory 0.61 GB (peak 0.70)  cpu"
        )
        of_text = read(planted(tmp_path, counted="tokens"))
        assert "  1,234 tokens/s  " in watching.line(of_text) and of_text.counted == "tokens"
        old = read(planted(tmp_path, time=time.time() - 100))
        assert "running (last sign 1 min 40 s ago)" in watching.line(old)
        gpu = read(planted(tmp_path, device="cuda:0", device_memory=8_000_000_000))
        assert watching.line(gpu).endswith("  cuda:0 8.00 GB")
    assert watching.line(State(tmp_path, "waiting")) == f"{tmp_path.name}  waiting"


def test_watching_ends_with_the_training_and_says_each_line_once(tmp_path):
    planted(tmp_path, warnings=["Steps take long."])
    said = []
    [found] = runs.watch(tmp_path, said.append, every=0.01)
    assert found.state == "stopped" and said[1:] == ["  ! Steps take long."] and "stopped" in said[0]
    said.clear()
    with lock.alone(tmp_path, "train"):
        [found] = runs.watch(tmp_path, said.append, once=True)
    assert found.state == "running" and "running" in said[0]


def test_watching_waits_while_it_trains(tmp_path):
    planted(tmp_path, epoch=1)
    said, held = [], contextlib.ExitStack()
    held.enter_context(lock.alone(tmp_path, "train"))

    def echo(sentence):
        said.append(sentence)
        planted(tmp_path, epoch=len(said) + 1)
        if len(said) == 3:
            held.close()

    runs.watch(tmp_path, echo, every=0.01)
    assert [f"epoch {n}/12" in sentence for n, sentence in enumerate(said, start=1)] == [True] * 4


def test_a_batch_shows_each_of_its_runs(tmp_path, monkeypatch, capsys):
    rows = []
    for name in ("one", "two", "waiting"):
        if name != "waiting":
            (tmp_path / "runs" / name).mkdir(parents=True)
            planted(tmp_path / "runs" / name, net=f"net of {name}")
        rows.append({"id": name, "folder": f"runs/{name}", "settings": {}})
    workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "r", "runs": rows})
    monkeypatch.setattr(sys, "argv", ["qnnkit", "watch", str(tmp_path), "--once"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0 and len(out) == 2
    assert "net of one" in out[0] and "net of two" in out[1]


def test_a_batch_is_watched_until_every_planned_run_has_ended(tmp_path):
    rows = [{"id": name, "folder": f"runs/{name}", "settings": {}} for name in ("one", "two", "three")]
    workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "r", "runs": rows})
    places = [tmp_path / row["folder"] for row in rows]
    for place in places:
        place.mkdir(parents=True)  # begun, but for its settings
    planted(places[0])
    said = []

    def finish(place):
        (place / "result.json").write_text("{}")

    def echo(sentence):
        said.append(sentence)
        if len(said) == 1:
            finish(places[0])
        elif len(said) == 2:
            planted(places[1])
        elif len(said) == 3:
            finish(places[1])
            workspace.write_json(places[2] / "failed.json", {"state": "failed", "error": "Odd."})

    found = runs.watch(tmp_path, echo, every=0.01)
    assert [status.state for status in found] == ["finished", "finished", "failed"] and said[-1].endswith(
        "failed: Odd."
    )
    workspace.write_json(tmp_path / "batch.json", {"name": "b"})
    with pytest.raises(ValueError, match="must hold a list of runs"):
        runs.watch(tmp_path)


def test_a_batch_whose_sampler_proposes_runs_is_watched_to_its_end(tmp_path, monkeypatch):
    session = tmp_path / "session.json"
    workspace.write_json(session, {"id": "one", "pruned": []})

    def plan(*names):
        rows = [{"id": name, "folder": f"runs/{name}", "settings": {}} for name in names]
        workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "r", "runs": rows})
        (tmp_path / "runs" / names[-1]).mkdir(parents=True)
        workspace.write_json(planted(tmp_path / "runs" / names[-1]) / "result.json", {})

    def echo(sentence):
        said.append(sentence)
        if len(said) == 1:
            plan("one", "two")
        else:
            session.unlink()

    said = []
    plan("one")
    found = runs.watch(tmp_path, echo, every=0.01)
    assert len(said) == 2 and [status.state for status in found] == ["finished", "finished"]
    workspace.write_json(session, {"id": "killed", "pruned": []})
    monkeypatch.setattr(watching, "PATIENCE", 0.05)
    assert len(runs.watch(tmp_path, str, every=0.01)) == 2, "as a kill leaves it"


def test_a_run_that_nobody_works_on_is_not_waited_for_ever(tmp_path, monkeypatch):
    for error, asked in ((ValueError, {"every": 0}), (FileNotFoundError, {})):
        with refused("every" if asked else "run_dir", error):
            runs.watch(tmp_path, **asked)
    monkeypatch.setattr(watching, "PATIENCE", 0.05)
    (tmp_path / "config.json").write_text("{}")
    for work in ("chain", "train"):
        (tmp_path / f".{work}.lock").touch()  # as a kill leaves it
    assert [status.state for status in runs.watch(tmp_path, str, every=0.01)] == ["waiting"]


def test_the_lines_on_a_terminal(tmp_path, monkeypatch):
    class Screen(io.StringIO):
        isatty = lambda self: True  # noqa: E731

    planted(tmp_path, warnings=["[red]Not markup[/red]."])
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    monkeypatch.setenv("COLUMNS", "60")
    runs.watch(tmp_path, once=True)
    shown = " ".join(screen.getvalue().split())
    assert "hybrid, seed 0 (1 of 5)" in shown and "! [red]Not markup[/red]." in shown


@pytest.mark.slow
def test_the_lines_in_a_notebook(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    planted(tmp_path, net="<b>", warnings=["a < b"])
    source = f"from qnnkit import runs\nfound = runs.watch({str(tmp_path)!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    told = output.data["text/plain"]
    assert "<b>" in told and "! a < b" in told and "epoch 3/12" in told
    assert "text/html" not in output.data  # where a name could be markup
