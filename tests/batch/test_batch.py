"""qnnkit.batch: batches are planned as a whole, run in parallel and resume after any kill.

Most tests run a stand-in for `qnnkit run` that trains nothing and writes the same files: tests/acted.py. It
is a thread of this process; tests of processes run it as a process.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

from qnnkit import batch, recipes, report, warm, workspace
from qnnkit.batch import batch_file, engine, workers
from qnnkit.runs import chain
from tests.acted import Acted, read_lines
from tests.forked import begin, start, until
from tests.toys import TINY, typing

ROOT = Path(__file__).parents[2]
BASE = {"name": "b", "recipe": "digits_quanv"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A new workspace, which is the current folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for module, seconds in ((engine, 0.1), (workers, 0.05)):  # keep waits short
        monkeypatch.setattr(module, "LOOK", seconds)
    return home


@pytest.fixture
def acted(home, monkeypatch):
    """A workspace whose runs are the stand-ins of tests/acted.py, in this process."""
    monkeypatch.setattr(workers, "warm", SimpleNamespace(start=Acted, PARENT=warm.PARENT))
    return home


@pytest.fixture
def apart(home):
    """A workspace whose runs are processes. Every process of a test ends with the test."""
    begin()
    yield home
    left = processes()
    for process in left:
        process.kill()
    assert not left


@pytest.fixture
def acted_apart(apart, tmp_path, monkeypatch):
    """A workspace whose runs are processes that run the stand-in of tests/acted.py."""
    (tmp_path / "stand-in").mkdir()
    (tmp_path / "stand-in" / "sitecustomize.py").write_text("import tests.stand_in")  # as Python starts
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "stand-in"), str(ROOT)]))
    monkeypatch.setenv("QNNKIT_STAND_IN", "1")
    return apart


@pytest.fixture(params=["forked", pytest.param("by itself", marks=pytest.mark.slow)])
def forked(request, acted_apart, monkeypatch):
    """Processes are forked, as on Linux, or spawned, as elsewhere."""
    if request.param == "by itself":
        monkeypatch.setattr(warm, "_begun", False)
        monkeypatch.setenv("QNNKIT_STAND_IN", "by itself")


def batch_of(**keys):
    """A batch of the stand-in's runs."""
    return {**BASE, "workers": 2, **keys, "settings": {"epochs": 3, **keys.get("settings", {})}}


def processes():
    """All other processes that work in the current folder: those started for the workspace."""
    started = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            tracker = "resource_tracker" in " ".join(process.cmdline())  # Python's; ends with its parent
            if process.cwd() == str(Path.cwd()) and not tracker and process.pid != os.getpid():
                started.append(process)
    return started


def begun():
    """The processes of the first two runs, from the ids that they wrote."""
    return [psutil.Process(calls(each)[0]["pid"]) for each in written()[:2]]


def hold(n=1):
    """Makes runs wait after two epochs, from the nth run on; returns a function that releases them."""
    file = workspace.home() / "hold"
    file.write_text(str(n))
    return lambda: file.unlink(missing_ok=True)


def calls(outcome):
    """What the stand-in wrote each time it was started in a run's folder."""
    return read_lines(outcome.folder / "calls.jsonl")


def quietly(content, **options):
    """Calls run_batch in this process; returns its outcomes and the lines that it printed."""
    lines = []
    with warnings.catch_warnings():
        outcomes = batch.run_batch(content, echo=lines.append, **options)
    return outcomes, lines


def states(outcomes):
    return [each.state for each in outcomes]


def as_file(content):
    Path("batch.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return "batch.yaml"


def written():
    """The outcomes of batch `b`; empty before it is planned."""
    return batch.read("batches/b") if (workspace.home() / "batches/b/batch.json").exists() else []


def epochs_of(outcome):
    return sum(row["event"] == "epoch" for row in read_lines(outcome.folder / "metrics.jsonl"))


def reached(*epochs):
    until(lambda: [epochs_of(each) for each in written()] == [*epochs], lambda: list(map(str, written())))


def paused(epochs, content, do=lambda: None, n=1, **options):
    """The outcomes of `quietly`; calls `do` once the waiting runs, from the nth on, have these epochs."""
    release = hold(n)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(quietly, content, **options)
        try:
            reached(*epochs)
            do()
        finally:
            release()
        return running.result()[0]


@contextlib.contextmanager
def command(content, *words):
    """`qnnkit batch` as a process in its own process group, as a terminal starts it."""
    process = start("qnnkit", "batch", as_file(content), *words, log=Path("out.txt").absolute())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def printed():
    """The output of `command`."""
    return Path("out.txt").read_text()


# --- planning ----------------------------------------------------------------------------------------------


def planned(**keys):
    return batch_file.plan(batch.read_config({**BASE, **keys}))


@pytest.mark.parametrize("inside", [True, False])
def test_runs_keep_their_names_when_the_workspace_or_data_move(tmp_path, monkeypatch, pictures, inside):
    """A relative data_dir is relative to the workspace."""
    ids, digests = [], []
    for name in ("first", "second"):
        mine = tmp_path / name / "my images"
        shutil.copytree(pictures, mine)
        monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / name if inside else tmp_path / "home"))
        (run,) = planned(recipe="folder_quanv", settings={"data_dir": "my images" if inside else str(mine)})
        assert run.config.data_dir == str(mine) and run.words == (f"data_dir={json.dumps(str(mine))}",)
        ids.append(run.id)
        digests.append(run.config.digest()[:12])
    assert len(set(ids)) == 1 and len({*ids, *digests}) == 3
    if not inside:
        both = [str(tmp_path / name / "my images") for name in ("first", "second")]
        with pytest.raises(ValueError, match="`data_dir` must end in another name for other data"):
            planned(recipe="folder_quanv", grid={"data_dir": both})
        workspace.write_json(workspace.make_folder(run.folder) / "config.json", {"data_dir": both[0]})
        workspace.write_json(run.folder / "provenance.json", {"data": "that of the first"})
        with pytest.raises(ValueError, match="was trained on other data than"):
            planned(recipe="folder_quanv", settings={"data_dir": both[1]})


def test_identical_runs_are_planned_once(home):
    """Numbers that YAML reads as strings count as numbers."""
    runs = planned(grid={"epochs": [12, 3, 3], "hidden": [24, 24], "learning_rate": ["1e-2", 0.01]})
    assert [run.varied["epochs"] for run in runs] == [12, 3]
    assert runs[0].varied["learning_rate"] == 0.01 and "learning_rate=0.01" in runs[0].words
    (usual,) = planned(name="other", settings={"epochs": 3})  # the others are the recipe's defaults
    assert usual.varied == {} and usual.words == ("epochs=3",)
    assert usual.config == recipes.settings("digits_quanv", epochs=3)
    assert usual.folder == runs[1].folder == home / "runs" / f"digits_quanv-{usual.config.digest()[:12]}"
    (alone,) = planned(recipe=["digits_quanv"])
    assert alone.varied == {"recipe": "digits_quanv"} and alone.id == planned()[0].id


# --- errors ------------------------------------------------------------------------------------------------

OPTUNA = {"n_trials": 2, "space": {"hidden": [1, 2]}}
BAD = [
    ("key of the batch", {"gird": {}}), ("name", {"name": None}), ("name", {"name": "../b"}),
    ("recipe", {"recipe": ["digits_quanv", "digit_quanv"]}), ("seeds.0", {"seeds": [-1]}),
    ("recipe", {"settings": {"recipe": "folder_quanv"}}), ("setting", {"runs": [{"epocs": 1}]}),
    ("grid.epochs", {"grid": {"epochs": []}}), ("grid.image_size.0", {"grid": {"image_size": [None]}}),
    ("epochs", {"grid": {"epochs": [1, 0]}}), ("backend", {"grid": {"backend": ["batched"]}}),
    ("batch_size", {"grid": {"batch_size": [8, "auto"]}}), ("seed", {"grid": {"seed": [1]}, "seeds": [1]}),
    ("notebook", {"notebooks": ["03_trian"]}), ("notebooks", {"notebooks": ["04_analyze"]}),
    ("workers", {"workers": 0}), ("gpus_per_run", {"gpus_per_run": 99}),
    ("optuna", {"optuna": OPTUNA, "grid": {"epochs": [1]}}),
    ("optuna.spcae", {"optuna": {**OPTUNA, "spcae": {}}}),
    *((name, {"optuna": {**OPTUNA, "space": {"hidden": space}}}) for name, space in (
        ("hidden", [1, 0]), ("hidden", {"low": 2, "high": 4}), ("optuna.space.hidden", {"low": 3, "high": 3}),
        ("optuna.space.hidden", {"low": 0, "high": 3, "log": True}),
        ("optuna.space.hidden", {"low": 2, "high": 4.5, "int": True}),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "keys"), BAD, ids=range(len(BAD)))
def test_a_bad_batch_raises_an_error_before_anything_is_written(home, argument, keys):
    with pytest.raises((ValueError, OSError)) as caught:
        batch.run_batch({**BASE, **keys}, echo=print)
    message = str(caught.value)
    assert f"`{argument}`" in message and "\n" not in message and message.endswith((".", "?"))
    assert list(home.iterdir()) == []


ATTACKS = (
    "!!python/object/apply:os.system ['touch executed']", "!!python/object/new:os.system ['touch executed']",
    "!!python/name:os.system", "!!python/module:antigravity", "!!python/tuple [1, 2]", "!include /etc/passwd",
)  # fmt: skip
TEXTS = {
    "must hold keys and values": ["", "- 1\n- 2"],
    "`key of the batch` must be a known name": ["1: 2"],
    "must be plain YAML": [
        "name: \x07", "name: a\n\trecipe: b", "name: 2024-13-45", "[" * 1000 + "]" * 1000,
        *(place.format(each) for place in ("{}", "name: b\ngrid: {{epochs: [{}]}}") for each in ATTACKS),
    ],
    "line 1, column 8": ["name: ["], "`name` is given twice": ["name: a\nname: b"],
    "found unhashable key": ["name: a\n? [1, 2]\n: b"], "it uses an alias `*`": ["a: &a [1, 2]\nb: *a"],
    "`recipe` must be given": ["name: a"], "in UTF-8": ["\udcffname"],
    "must be a number, a text": ["name: a\nrecipe: digits_quanv\nsettings: {data_dir: 2024-01-01}"],
}  # fmt: skip


@pytest.mark.parametrize("message", TEXTS)
def test_text_that_is_no_batch_raises_an_error_and_runs_no_code(home, message):
    for text in TEXTS[message]:
        Path("b.yaml").write_text(text, errors="surrogateescape")
        with pytest.raises(ValueError) as caught:
            batch.run_batch("b.yaml")
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert list(home.iterdir()) == [] and not Path("executed").exists()
    with pytest.raises(FileNotFoundError, match=r"Cannot read batch file .*No such file"):
        batch.run_batch("none.yaml")


@pytest.mark.parametrize(("module", "extra"), [("distributed", "cluster"), ("optuna", "sweep")])
def test_a_missing_extra_names_the_command_that_installs_it(home, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {module}.*pip install 'qnnkit\[{extra}\]'"):
        batch.run_batch({**BASE, "optuna": OPTUNA}, echo=print, scheduler="tcp://127.0.0.1:9")
    assert list(home.iterdir()) == []


# --- running -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "wanted", "gpus", "expected"),
    [
        ({}, 1, 0, (8, 1)), ({}, None, 0, (8, 1)), ({}, 4, 0, (2, 4)), ({"seeds": [0, 1, 2]}, 1, 0, (3, 2)),
        ({"workers": 20}, 1, 0, (20, 1)), ({"gpus_per_run": 2, "workers": 1}, 1, 4, (1, 8)),
        ({"gpus_per_run": 2}, 1, 4, (2, 4)),
    ],
)  # fmt: skip
def test_cores_gpus_and_memory_limit_the_workers(monkeypatch, keys, wanted, gpus, expected):
    monkeypatch.setattr(workers.machine, "cores", lambda: 8)
    monkeypatch.setattr(workers, "RUN_BYTES", 1)
    config = batch.read_config({**BASE, "seeds": list(range(100)), **keys})
    assert workers.shares(config, wanted, gpus) == expected
    if not keys:
        monkeypatch.setattr(workers, "RUN_BYTES", workers.machine.memory()[1] / 2.5)
        assert workers.shares(config, 1, 0)[0] in (2, 3)


def test_recipes_grid_runs_and_seeds_combine_in_order(acted):
    """Recipes are shipped ones or files; each run gets its own."""
    path = recipes.new(acted / "digits_again.py")
    path.write_text(path.read_text().replace("stride: int = 1", "stride: int = 2"))
    named = {"digits_quanv": "digits_quanv", "digits_again": str(path)}
    pairs = [{"n_layers": 3, "filters": 2}, {"n_layers": 4}]
    parts = {"grid": {"hidden": [3, 4]}, "runs": pairs, "seeds": [0, 7], "notebooks": ["03_train"]}
    outcomes, _ = quietly(batch_of(recipe=["digits_quanv", "digits_again.py"], **parts))
    assert states(outcomes) == ["finished"] * 16
    wanted = itertools.product(named, (3, 4), pairs, (0, 7))
    for (name, hidden, pair, seed), outcome in zip(wanted, outcomes, strict=True):
        assert outcome.settings == {"recipe": name, "hidden": hidden, **pair, "seed": seed}
        assert outcome.folder.name.startswith(f"{name}-")
        assert calls(outcome)[0]["words"][2:6] == ["--recipe", named[name], "--notebooks", "03_train"]


def test_a_batch_runs_and_is_saved(acted):
    content = batch_of(grid={"learning_rate": [0.1, 0.2, 0.3]}, settings={"threads": 2}, workers=1)
    outcomes, lines = quietly(content)
    assert states(outcomes) == ["finished"] * 3 and outcomes[-1].validation == pytest.approx(1.0)
    folder = acted / "batches" / "b"
    assert written() == outcomes and yaml.safe_load((folder / "batch.yaml").read_text()) == content
    listed = json.loads((folder / "batch.json").read_text())
    assert listed.keys() == {"name", "recipe", "score", "runs"}
    for row, each in zip(listed["runs"], outcomes, strict=True):
        assert (folder / row["folder"]).resolve() == each.folder
        (call,) = calls(each)
        assert call["threads"] == "2" and call["settings"]["threads"] == 2
        assert call["words"][4:6] == ["--notebooks", "03_train,04_analyze"]
    assert {path.name for path in folder.glob("[!.]*")} == {"batch.yaml", "batch.json"}
    assert lines[0] == "Batch b: 3 runs." and sum("  finished" in line for line in lines) == 3
    before = {path: path.stat().st_mtime_ns for path in (acted / "runs").rglob("[!.]*")}
    assert quietly(content) == (outcomes, ["Batch b: 3 runs."])
    assert {path: path.stat().st_mtime_ns for path in (acted / "runs").rglob("[!.]*")} == before
    judged = {**content, "settings": {**content["settings"], "min_difference": 0.5}}
    assert quietly(judged) == quietly(judged) == (outcomes, ["Batch b: 3 runs."])
    after = [workspace.read_json(each.folder / "config.json") for each in outcomes]
    assert [each["min_difference"] for each in after] == [0.5] * 3, "finished runs are judged again"
    (workspace.make_folder(outcomes[0].folder / "notebooks") / "03_train.ipynb").touch()
    (outcomes[0].folder / "config.json").unlink()
    quietly(content)
    assert (outcomes[0].folder / "config.json").exists(), "04_analyze was requested but is missing"
    assert [each.settings["learning_rate"] for each in outcomes] == [0.1, 0.2, 0.3]


def test_a_finished_run_that_is_missing_on_drive_is_mirrored(acted, tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "machine"))
    (run,) = batch_file.plan(batch.read_config(batch_of()))
    local = workspace.make_folder(workspace.run_folder(run.folder))
    for name in ("config.json", "result.json"):
        workspace.write_json(local / name, {"score": 1.0})
    (acted / "runs").write_text("no folder can be made here")
    assert quietly(batch_of())[1][1].startswith("Its worker could not run it: ")
    (acted / "runs").unlink()
    outcomes, lines = quietly(batch_of())
    assert states(outcomes) == ["finished"] and len(lines) == 1
    assert json.loads((run.folder / "result.json").read_text()) == {"score": 1.0}


def test_a_failed_run_is_retried_and_stops_no_other_run(acted, monkeypatch, capfd):
    content = batch_of(grid={"hidden": [99, 98, 4]}, retries=1)
    outcomes, lines = quietly(content)
    assert states(outcomes) == ["failed", "finished", "finished"]
    failed, mended, _ = outcomes
    assert failed.error == "Notebook 03_train.ipynb stopped: It diverged."
    assert (failed.folder / "failed.json").exists() and not (mended.folder / "failed.json").exists()
    assert [len(calls(each)) for each in outcomes] == [2, 2, 1]
    for words in ("hidden=99", "1 failed, 2 finished", "failed: Notebook 03_train"):
        assert any(words in line for line in lines)
    status, text, error = typing(monkeypatch, capfd)("batch", as_file(content | {"retries": 0}))
    assert status == 1 and "Traceback" not in text + error and "Report: " in text
    assert [len(calls(each)) for each in outcomes] == [3, 2, 1], "the same command retries it"


def test_a_finished_run_is_not_repeated_by_another_batch(acted):
    first, _ = quietly(batch_of(grid={"hidden": [3, 4]}))
    other, lines = quietly(batch_of(name="c", runs=[{"hidden": 4}, {"hidden": 5}, {"hidden": 5}]))
    assert lines[0] == "Batch c: 2 runs (without 1 duplicate)."
    changed, _ = quietly(batch_of(grid={"hidden": [4, 5]}))
    assert changed[0] == first[1] and {*states(other), *states(changed)} == {"finished"}
    assert [len(calls(each)) for each in (*first, *other)] == [1] * 4


def test_each_run_has_its_own_gpus(acted, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    outcomes = paused([2, 2, 0], batch_of(grid={"hidden": [3, 4, 5]}, gpus_per_run=2))
    assert states(outcomes) == ["finished"] * 3
    seen = [calls(one)[0]["gpus"] for one in outcomes]
    assert sorted(seen[:2]) == ["GPU-a,GPU-b", "GPU-c,GPU-d"] and seen[2] in seen[:2]


# --- kills -------------------------------------------------------------------------------------------------


SLOW = batch_of(settings={"epochs": 4}, grid={"hidden": [3, 4, 5]})


def undisturbed(*starts):
    """Asserts that the runs end as if nobody had killed them; returns how often each one started."""
    for each in written():
        assert each.state == "finished", each
        rows = read_lines(each.folder / "metrics.jsonl")
        assert [row.get("epoch") for row in rows] == [1, 2, 3, 4, None]
    assert not starts or sorted(len(calls(each)) for each in written()) == [*starts]


@contextlib.contextmanager
def holding(*args):
    """A command whose runs wait after two epochs each, and a function that releases them."""
    release = hold()
    with command(*args) as process:
        reached(2, 2, 0)
        yield process, release


@pytest.mark.usefixtures("forked")
def test_two_runs_at_a_time_without_ports_and_a_killed_run_is_retried(monkeypatch):
    monkeypatch.setattr(engine, "alone", partial(engine.alone, wait=0))
    with holding(SLOW | {"retries": 1}) as (process, release):
        there, running = processes(), begun()
        assert {process.pid, *(each.pid for each in running)} <= {each.pid for each in there}
        connections = [one for each in there for one in each.net_connections("inet")]
        assert [one for one in connections if one.status == psutil.CONN_LISTEN] == []
        with pytest.raises(BlockingIOError, match="is in use by another process"):
            quietly(SLOW)
        assert "retries" in (workspace.home() / "batches/b/batch.yaml").read_text(), "the first run's process"
        running[0].kill()
        release()
        assert process.wait(120) == 0
    assert "SIGKILL" not in printed().splitlines()[-1]
    undisturbed(1, 1, 2)


ENDS = {"killed": signal.SIGKILL, "long killed": signal.SIGKILL}
ENDS |= {"ctrl-c": signal.SIGINT, "terminated": signal.SIGTERM}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("how", ENDS)
def test_an_interrupted_batch_resumes(how):
    """The next command does not wait for processes of a killed one: it ends them itself."""
    with holding(SLOW) as (process, release):
        if how == "ctrl-c":
            os.killpg(process.pid, ENDS[how])  # as a terminal does: sent to the batch and its workers
        else:
            process.send_signal(ENDS[how])
        if ENDS[how] != signal.SIGKILL:
            assert process.wait(60) == 128 + ENDS[how] and processes() == []
            assert "Stopping: checkpoints are written. Run the same command again to resume." in printed()
            assert "Traceback" not in printed() and "Error" not in printed()
        elif how == "long killed":
            until(lambda: processes() == [])
    release()
    if how != "killed":  # an ending process releases its lock last
        until(lambda: {*states(written())} <= {"waiting", "stopped"})
    quietly(SLOW)
    undisturbed(*((1, 2, 2) if how != "killed" else ()))


# --- an external scheduler ---------------------------------------------------------------------------------


@contextlib.contextmanager
def scheduler():
    """A scheduler and two workers as a user starts them: the address and the processes, scheduler last."""
    file, log = Path("scheduler.json").absolute(), Path("dask.txt").absolute()
    words = ("--scheduler-file", file, "--protocol", "tcp", "--host", "127.0.0.1", "--no-dashboard")
    # After a killed test all of these end: a worker with its scheduler, the scheduler once it is idle.
    started = [start("dask", "scheduler", *words, "--port", 0, "--idle-timeout", 300, log=log)]
    try:
        address = json.loads(until(lambda: file.exists() and file.read_text()))["address"]
        words += ("--no-nanny", "--death-timeout", 60, "--nthreads", 1)
        started[:0] = [start("dask", "worker", *words, log=log) for _ in range(2)]
        yield address, started
    finally:
        for process in started:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a worker may wait for its tasks
                process.wait(10)
            process.kill()
            process.wait()


@pytest.mark.usefixtures("acted_apart")
@pytest.mark.parametrize("which", ["worker", pytest.param("scheduler", marks=pytest.mark.slow)])
def test_a_killed_worker_or_scheduler(which):
    """The runs of a killed worker go to another one; a lost scheduler is reported."""
    with (
        scheduler() as (address, started),
        holding(SLOW, "--scheduler", address) as (process, release),
    ):
        running = begun()
        started[0 if which == "worker" else -1].kill()
        until(lambda: not all(each.is_running() for each in running))
        if which == "worker":
            release()
        assert process.wait(120) == (0 if which == "worker" else 2)
    assert (which == "worker") != ("The scheduler is gone." in printed())
    release()
    quietly(SLOW)
    undisturbed(*((1, 1, 2) if which == "worker" else ()))


def test_a_worker_on_another_disk_stops_the_batch_with_one_sentence(home, monkeypatch):
    job = workers.Job
    monkeypatch.setattr(workers, "Job", lambda **facts: job(**facts | {"batch": "elsewhere"}))
    with pytest.raises(ConnectionError, match=r"A worker does not see .*Set QNNKIT_HOME to a folder"):
        quietly(batch_of(seeds=[8, 9]))
    assert states(written()) == ["waiting"] * 2


def test_a_scheduler_without_an_answer_or_workers(home, monkeypatch):
    """Also if nothing is left to run: no option is silently ignored."""
    from distributed import LocalCluster

    monkeypatch.setattr(workers, "TIMEOUT", 0.3)
    before = random.getstate()
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as empty:
        random.setstate(before)
        for place in ("tls://127.0.0.1:9", empty):
            where = getattr(place, "scheduler_address", place)
            text = rf"No scheduler with a worker answers at {where} \(.*`dask worker {where} --nthreads 1`\.$"
            with pytest.raises(ConnectionError, match=text):
                quietly(batch_of(), scheduler=place)
    random.setstate(before)
    assert list(home.iterdir()) == []


# --- messages ----------------------------------------------------------------------------------------------


def test_the_reason_why_a_run_ended(tmp_path):
    log, lines = tmp_path / "log.txt", ("qnnkit: It broke.\n", "Trace\nRuntimeError: odd\n")
    log.write_text("".join(lines))
    for at, status, reason in (
        (len(lines[0]), 1, "stopped with status 1: RuntimeError: odd. Its log is"),
        (len("".join(lines)), -9, "was ended by SIGKILL: it printed nothing. Memory may have run out"),
    ):
        assert reason in workers.reason(log, at, status)


# --- a sampler ---------------------------------------------------------------------------------------------

RATES = {"learning_rate": {"low": 0.01, "high": 1.0}}
HIDDEN = {"hidden": [3, 4, 5]}
STARTUP = {"seed": 1, "startup_trials": 2, "warmup_epochs": 0}


def study_of(space, keys=None, **options):
    """A batch with a sampler that never prunes."""
    return batch_of(**keys or {}, optuna={"n_trials": 3, "pruner": "none", "space": space, **options})


@pytest.fixture
def studies(acted, monkeypatch):
    """The studies that this process creates, oldest first."""
    import optuna

    made, create = [], optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **options: made.append(create(**options)) or made[-1])
    return made


def test_a_sampler_proposes_learns_and_prunes_runs(studies):
    """The third run waits after two epochs until it is pruned: it is worse than the median of two."""
    content = study_of(RATES, {"workers": 1}, n_trials=5, pruner="median", **STARTUP)
    lines, release = [], hold(3)

    def echo(line):
        lines.append(line)
        if "pruned" in line:
            release()

    outcomes = batch.run_batch(content, echo=echo)
    assert lines[0] == "Batch b: up to 5 runs, proposed by tpe."
    assert quietly(content)[0] == outcomes and len(outcomes) == 5
    for study in studies:  # the second study is rebuilt from the files
        for trial, run in zip(study.trials, outcomes, strict=True):
            assert trial.params["learning_rate"] == pytest.approx(run.settings["learning_rate"])
            assert trial.state.name == {"finished": "COMPLETE", "pruned": "PRUNED"}[run.state]
            if run.state == "finished":
                assert trial.value == pytest.approx(1 - abs(trial.params["learning_rate"] - 0.3))
                assert set(trial.intermediate_values) == {1, 2, 3}
    pruned = outcomes[2]
    assert pruned.state == "pruned" and "worse than other runs" in pruned.error
    assert epochs_of(pruned) < 3
    assert len(quietly(study_of(RATES, {"workers": 1}, n_trials=6, **STARTUP))[0]) == 6


def test_a_killed_study_resumes_as_if_never_killed(acted, studies, monkeypatch):
    """One run at a time; trials agree to the last digit. A loss is minimised.

    A copy of the workspace at that moment imitates what a kill leaves.
    """
    space = {**RATES, "controls": [["classical"], ["no_quantum"]], "optimizer": ["adam", "sgd"]}
    left = acted.with_name("left")
    content = study_of(space, {"recipe": "text_llama", "workers": 1}, n_trials=5, seed=1)
    calm = paused([3, 2], content, lambda: shutil.copytree(acted, left), n=2)
    monkeypatch.setenv("QNNKIT_HOME", str(left))
    (left / "hold").unlink()
    outcomes, _ = quietly(content)
    assert states(outcomes) == states(calm) == ["finished"] * 5
    assert [each.id for each in outcomes] == [each.id for each in calm]
    assert [len(calls(each)) for each in outcomes] == [1, 2, 1, 1, 1]
    before, killed = ([(each.params, each.value) for each in study.trials] for study in studies)
    losses = [3 + abs(params["learning_rate"] - 0.3) for params, _ in killed]
    assert killed == before and [value for _, value in killed] == pytest.approx(losses)
    assert studies[0].best_value == pytest.approx(min(losses))
    assert [each.validation for each in outcomes] == pytest.approx(losses)


def test_trials_of_another_search_space_or_recipe_are_skipped(acted, studies):
    def ids(space=HIDDEN, keys=None, **options):
        return {each.id for each in quietly(study_of(space, keys, sampler="random", **options))[0]}

    before, path = ids(), acted / "batches" / "b" / "batch.json"
    listed = workspace.read_json(path)
    del listed["trials"]  # as version 0.1 wrote it
    workspace.write_json(path, listed)
    assert before <= ids()
    ids({"hidden": [3]}, n_trials=2)
    assert {each.settings["hidden"] for each in written()} == {3}
    assert not ids(keys={"settings": {"seed": 1}}) & before and len(studies[-1].trials) == 3


def test_a_repeated_proposal_runs_once_and_the_next_command_retries_failures(studies):
    """Choices may be lists."""
    space = {"controls": [["classical"], ["classical", "frozen_random"]]}
    for _ in range(2):
        outcomes, _ = quietly(study_of(space, sampler="random", n_trials=6))
        assert sorted(each.settings["controls"] for each in outcomes) == space["controls"]
        assert [len(calls(each)) for each in outcomes] == [1, 1]
        assert [each.state.name for each in studies[-1].trials].count("COMPLETE") == 2
        assert len(studies[-1].trials) == 6
    failing = study_of({"hidden": [98]}, {"workers": 1, "name": "c"}, sampler="random")
    assert [states(quietly(failing)[0]) for _ in range(2)] == [["failed"], ["finished"]]
    assert [each.state.name for each in studies[-1].trials] == ["COMPLETE", "FAIL", "FAIL"]


# --- real runs ---------------------------------------------------------------------------------------------


def small(pictures, **keys):
    """A batch of real runs."""
    settings = {**TINY, "backend": "batched", "data_dir": str(pictures)}
    return {**BASE, "recipe": "folder_quanv", "settings": settings, **keys}


def test_a_batch_of_only_03_train_ends_with_a_result_and_a_page(apart, pictures, monkeypatch, capfd):
    outcomes, _ = quietly(small(pictures, notebooks=["03_train"]))
    assert states(outcomes) == ["finished"], outcomes[0].error
    folder = outcomes[0].folder
    assert [path.stem for path in (folder / "notebooks").iterdir()] == ["03_train"]
    log = (folder / "run.log").read_text()
    assert len(re.findall(r"epoch +1/2", log)) == 2 and log.count("03_train ...") == 1, "each line once"
    assert f"{folder.name}/report.html" in report.write_batch_page(apart / "batches" / "b").read_text()
    monkeypatch.setattr(chain, "launch", lambda notebook, output, *_: output.write_text("{}"))
    qnnkit = typing(monkeypatch, capfd)
    analyze = "run", "--run-dir", folder, "--notebooks", "04_analyze"
    assert "[1/1] 04_analyze: done" in qnnkit(*analyze)[1], "a named notebook runs even if there is a result"
    assert "04_analyze" not in qnnkit(*analyze)[1].split("Report:")[0], "once"
    (folder / "result.json").unlink()
    assert "[1/1] 04_analyze: done" in qnnkit(*analyze)[1], "the mark of a finished run is gone"


@pytest.mark.slow
def test_the_study_notebook(apart):
    from qnnkit import runs

    values = {"run_dir": "batches/toy", "epochs": 1, "n_seeds": 2, "workers": 2, "fractions": [0.5, 1.0]}
    copy = apart / "batches" / "toy" / "06_study.ipynb"
    runs.launch(ROOT / "notebooks" / "06_study.ipynb", copy, values)
    assert states(batch.read("batches/toy")) == ["finished"] * 2
    page = copy.with_name("report.html").read_text()
    assert re.search(r"undecided\s+of\s+4\.", page) and page.count("<img") == 3


@pytest.mark.slow
@pytest.mark.usefixtures("apart")
def test_24_real_runs_stop_cleanly_and_fail_alone_without_clashes(pictures):
    """Half of them diverge and keep their notebooks; Ctrl-C in the middle leaves no kernel behind."""
    content = small(pictures, grid={"learning_rate": [0.01, 1e30]}, seeds=list(range(12)), workers=2)
    with command(content) as process:
        until(lambda: any("qnnkit.kernel" in str(each.cmdline()) for each in processes()), seconds=90)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(90) == 130 and processes() == []
    with command(content) as process:
        assert process.wait(600) == 1, printed()
    good, bad = written()[:12], written()[12:]
    assert states(good) == ["finished"] * 12 and states(bad) == ["failed"] * 12
    assert all((each.folder / "notebooks" / "04_analyze.ipynb").exists() for each in good)
    assert all(any((each.folder / "notebooks").glob("*.failed.ipynb")) for each in bad)
    assert all(f"failed: {each.error}" in printed() for each in bad) and processes() == []
