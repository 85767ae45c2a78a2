"""How a training stands: written while it trains, read from elsewhere, shown in place."""

import io
import json
import platform
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from qnnkit import cli, runs, workspace
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import status, watching
from qnnkit.runs.status import FILE, Reporter, Status, read
from qnnkit.train import Moment

SMALL = {"epochs": 2, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": ["no_quantum"], "threads": 1}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two nets, and what its status was at the end of every epoch."""
    run = runs.open_run(tmp_path_factory.mktemp("status") / "run", "digits_quanv", **SMALL)
    before, seen = read(run.folder), []
    list(runs.train_all(run, on_epoch=lambda row: seen.append(read(run.folder))))
    return run, before, seen


def test_a_training_tells_how_it_stands(trained):
    _, before, seen = trained
    assert (before.state, before.net) == ("not begun", None)
    assert {one.state for one in seen} == {"running"} and len(seen) == 4
    first, last = seen[0], seen[-1]
    assert (first.net, first.number, first.of, first.epochs) == ("hybrid", 1, 2, 2)
    assert (last.net, last.number, last.seed) == ("no_quantum", 2, 0)
    assert first.steps == 34 and 1 <= first.step <= 34 and first.loss > 0
    assert first.host == platform.node() and first.device == "cpu" and first.age < 60
    assert 1e8 < first.memory <= first.peak_memory < 1e11


def test_in_the_end_it_has_finished_and_another_call_writes_nothing(trained):
    run, _, _ = trained
    end = read(run.folder)
    assert end.state == "finished" and (end.net, end.epoch) == ("no_quantum", 2)
    content = (run.folder / FILE).read_bytes()
    list(runs.train_all(runs.open_run(run.folder)))
    assert (run.folder / FILE).read_bytes() == content


def test_peak_memory_stands_in_the_final_rows(trained):
    run, _, _ = trained
    for row in run.tested().values():
        assert 1e8 < row["peak_memory"] < 1e11
        assert row["peak_memory"] == pytest.approx(row["peak_ram"], rel=0.01)  # on a CPU the two are one


def test_an_interrupted_training_has_stopped_and_keeps_its_peak(tmp_path):
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(runs.train_all(run, on_epoch=stop))
    found = read(run.folder)
    assert found.state == "stopped" and found.pid is not None
    planted = json.loads((run.folder / FILE).read_text()) | {"peak_memory": 10**12}
    workspace.write_json(run.folder / FILE, planted)
    finals = list(runs.train_all(run))
    assert [row["peak_memory"] == 10**12 for row in finals] == [True, False]  # of the same net alone
    assert read(run.folder).state == "finished"


# --- what is written ---------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        fake = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1e9 + self.now)
        monkeypatch.setattr(status, "time", fake)


def moment(updates, steps=10, epochs=4):
    epoch, step = divmod(updates - 1, steps)
    return Moment(
        epoch=epoch + 1, epochs=epochs, step=step + 1, steps=steps, updates=updates, samples=32,
        loss=1 / updates, seconds=0.5, at_once=None,
    )  # fmt: skip


def reported(tmp_path, seeds=2, finished=()):
    run = SimpleNamespace(folder=tmp_path, seeds=range(seeds), nets=("hybrid", "classical"))
    return Reporter(run, dict(finished))


def content(folder):
    return json.loads((folder / FILE).read_text())


def test_time_left_and_speed(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    row = {"epochs": 4, "seconds_per_epoch": 3.0}
    with reported(tmp_path, finished={("classical", 0): row}.items()) as reporter:
        reporter.begin("hybrid", 0, CPU)
        for updates in range(1, 12):
            reporter.update(moment(updates))
            clock.now += 0.5
        found = content(tmp_path)
        assert (found["epoch"], found["step"], found["updates"]) == (2, 1, 11)
        assert found["per_second"] == 64
        assert found["seconds_left_net"] == pytest.approx(29 * 0.5)
        # hybrid of seed 1 as long as this one, classical of seed 1 as long as that of seed 0
        assert found["seconds_left_run"] == pytest.approx(29 * 0.5 + 40 * 0.5 + 12)
        assert (found["number"], found["of"]) == (1, 4)
    assert content(tmp_path)["ended"] == "stopped"


def test_a_net_that_stopped_early_took_the_epochs_that_it_had(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    row = {"epochs": 4, "epochs_trained": 2, "seconds_per_epoch": 3.0}
    with reported(tmp_path, finished={("classical", 0): row, ("hybrid", 0): row}.items()) as reporter:
        reporter.begin("hybrid", 1, CPU)
        for updates in range(1, 12):
            reporter.update(moment(updates))
            clock.now += 0.5
        found = content(tmp_path)
        assert found["seconds_left_run"] - found["seconds_left_net"] == pytest.approx(2 * 3.0)


def test_it_is_written_about_once_a_second(tmp_path, monkeypatch):
    clock, writes = Clock(monkeypatch), []
    real = Reporter._write
    monkeypatch.setattr(Reporter, "_write", lambda self, facts: (writes.append(clock.now), real(self, facts)))
    with reported(tmp_path) as reporter:
        reporter.begin("hybrid", 0, CPU)
        for updates in range(1, 1001):
            clock.now += 0.01
            reporter.update(moment(updates, steps=1000))
    assert len(writes) in (11, 12)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_disk_that_fails_stops_nothing(tmp_path):
    (tmp_path / FILE).mkdir()
    with reported(tmp_path) as reporter:
        reporter.begin("hybrid", 0, CPU)
        reporter.update(moment(1))
    assert (tmp_path / FILE).is_dir()


def test_it_tells_at_once_that_a_training_goes_on(tmp_path):
    planted(tmp_path, ended="stopped")
    with reported(tmp_path) as reporter:
        reporter.begin("hybrid", 0, CPU)
        found = read(tmp_path)
        assert (found.state, found.net, found.step, found.peak_memory) == (
            "running",
            "hybrid",
            None,
            700_000_000,
        )
        start = f"{tmp_path.name}  running  hybrid, seed 0 (1 of 4)  memory "
        assert watching.line(found, "").startswith(start) and found.memory > 1e8
    assert read(tmp_path).state == "stopped"


def test_several_processes_are_as_fast_as_all_of_them(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with reported(tmp_path) as reporter:
        reporter.begin("hybrid", 0, CPU)
        for updates in range(1, 12):
            reporter.update(moment(updates))
            clock.now += 0.5
        assert content(tmp_path)["per_second"] == 128


# --- what is read ------------------------------------------------------------------------------------------


def planted(folder, **facts):
    (folder / "config.json").write_text("{}")
    process = psutil.Process()
    usual = {
        "net": "hybrid", "seed": 0, "number": 1, "of": 5, "epoch": 3, "epochs": 12, "step": 20, "steps": 34,
        "loss": 0.5123, "per_second": 1234.5, "seconds_left_net": 95.0, "seconds_left_run": 4000.0,
        "memory": 610_000_000, "peak_memory": 700_000_000, "device": "cpu", "warnings": [],
        "pid": process.pid, "process_started": process.create_time(), "host": platform.node(),
        "time": time.time(),
    }  # fmt: skip
    (folder / FILE).write_text(json.dumps(usual | facts))
    return folder


def gone():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "running"),
        ({"time": 0}, "running"),  # validation may be long, and a process that lives goes on
        ({"process_started": 1.0}, "stopped"),  # another process has its number now
        ({"pid": "x"}, "stopped"),
        ({"ended": "stopped"}, "stopped"),
        ({"ended": "finished"}, "finished"),
        ({"host": "elsewhere"}, "running"),
        ({"host": "elsewhere", "time": 0}, "stopped"),
    ],
)
def test_states(tmp_path, facts, state):
    assert read(planted(tmp_path, **facts)).state == state


def test_a_process_that_is_gone_has_stopped(tmp_path):
    assert read(planted(tmp_path, pid=gone())).state == "stopped"
    (tmp_path / "result.json").write_text("{}")
    assert read(tmp_path).state == "finished"


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"time": "now"}', "null"])
def test_a_damaged_file_is_no_status(tmp_path, damaged):
    planted(tmp_path)
    (tmp_path / FILE).write_text(damaged)
    assert read(tmp_path).state == "not begun"


def test_values_of_the_wrong_kind_are_left_out(tmp_path):
    found = read(planted(tmp_path, loss="low", net=3, warnings="all", memory=True))
    assert (found.loss, found.net, found.warnings, found.memory) == (None, None, (), None)
    assert watching.line(found, "")
    endless = read(planted(tmp_path, seconds_left_net=float("inf"), memory=float("nan")))
    assert watching.line(endless, "") and (endless.seconds_left_net, endless.memory) == (None, None)


def test_a_mirrored_run_is_read_where_it_is_mirrored(tmp_path):
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    for epoch in (1, 2):
        planted(local, host="elsewhere", epoch=epoch)
        with Mirror(local, remote):
            pass
    assert read(remote).epoch == 2 and read(remote).state == "running"


@pytest.mark.parametrize("folder", ["nothing", "empty"])
def test_a_folder_without_a_run_gets_one_sentence(tmp_path, folder, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["qnnkit", "watch", str(tmp_path / folder)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.startswith(
        "qnnkit: Argument `run_dir` must hold a run or a batch"
    )


def test_a_bad_period_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`every` must be above 0, but is 0"):
        runs.watch(planted(tmp_path), every=0)


# --- what is shown -----------------------------------------------------------------------------------------


def test_a_line_of_words(tmp_path):
    found = read(planted(tmp_path))
    assert watching.line(found, "cpu 98 %") == (
        f"{tmp_path.name}  running  hybrid, seed 0 (1 of 5)  epoch 3/12, step 20/34  loss 0.5123  "
        "1,234 samples/s  1 min 35 s, in all 1 h 6 min left  memory 0.61 GB (peak 0.70)  cpu 98 %"
    )
    assert watching.line(Status(tmp_path, "not begun"), "") == f"{tmp_path.name}  not begun"
    of_text = read(planted(tmp_path, counted="tokens"))
    assert "  1,234 tokens/s  " in watching.line(of_text, "") and of_text.counted == "tokens"
    old = read(planted(tmp_path, time=time.time() - 100))
    assert "running (last sign 1 min 40 s ago)" in watching.line(old, "")


def test_watching_ends_with_the_training_and_says_each_line_once(tmp_path):
    planted(tmp_path, ended="finished", warnings=["Steps take long."])
    said = []
    [found] = runs.watch(tmp_path, said.append, every=0.01)
    assert found.state == "finished" and said[1:] == ["  ! Steps take long."] and "finished" in said[0]
    planted(tmp_path)
    said.clear()
    [found] = runs.watch(tmp_path, said.append, once=True)
    assert found.state == "running" and said[0].endswith(" %")  # this very process's load


def test_watching_waits_while_it_trains(tmp_path):
    planted(tmp_path, epoch=1)
    said = []

    def echo(sentence):
        said.append(sentence)
        planted(tmp_path, epoch=len(said) + 1, **({"ended": "finished"} if len(said) == 3 else {}))

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

    def echo(sentence):
        said.append(sentence)
        if len(said) == 1:
            planted(places[0], ended="finished")
        elif len(said) == 2:
            planted(places[1])
        elif len(said) == 3:
            planted(places[1], ended="finished")
            workspace.write_json(places[2] / "failed.json", {"state": "failed"})

    found = runs.watch(tmp_path, echo, every=0.01)
    assert [status.state for status in found] == ["finished", "finished", "stopped"]
    workspace.write_json(tmp_path / "batch.json", {"name": "b"})
    with pytest.raises(ValueError, match="must hold a list of runs"):
        runs.watch(tmp_path)


def test_a_run_that_nobody_works_on_is_not_waited_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "PATIENCE", 0.05)
    (tmp_path / "config.json").write_text("{}")
    note = {"pid": gone(), "machine": platform.node()}
    workspace.write_json(tmp_path / ".chain.json", note)  # as a kill leaves it
    assert [status.state for status in runs.watch(tmp_path, str, every=0.01)] == ["not begun"]


def test_the_table_on_a_terminal(tmp_path):
    from rich.console import Console

    found = read(planted(tmp_path, warnings=["[red]Not markup[/red]."]))
    screen = io.StringIO()
    Console(file=screen, width=200).print(watching._table([found], ["cpu 98 %"]))
    shown = screen.getvalue()
    assert "hybrid, seed 0 (1 of 5)" in shown and "! [red]Not markup[/red]." in shown and "cpu 98 %" in shown


@pytest.mark.slow
def test_the_table_in_a_notebook(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    planted(tmp_path, ended="finished", net="<b>", warnings=["a < b"])
    source = f"from qnnkit import runs\nfound = runs.watch({str(tmp_path)!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    assert "&lt;b&gt;" in output.data["text/html"] and "<p>! a &lt; b</p>" in output.data["text/html"]
    assert "epoch 3/12" in output.data["text/plain"]


def test_a_gpu_is_asked_by_its_own_name(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(watching.machine, "output", lambda *words: asked.append(words) or "97, 61")
    found = read(planted(tmp_path, device="cuda:0", device_id="GPU-1a", device_memory=8_000_000_000))
    assert watching.Load().told(found) == "cuda:0 8.00 GB 97 %, 61 °C" and "--id=GPU-1a" in asked[0]
    monkeypatch.setattr(watching.machine, "output", lambda *words: "")  # there is no nvidia-smi
    assert watching.Load().told(found) == "cuda:0 8.00 GB"
    mac = read(planted(tmp_path, device="mps", device_memory=1_000_000_000))
    assert watching.Load().told(mac) == "mps 1.00 GB (its load is not told here)"
    away = read(planted(tmp_path, device="cuda:0", device_id="GPU-1a", host="elsewhere"))
    assert watching.Load().told(away) == "cuda:0"
