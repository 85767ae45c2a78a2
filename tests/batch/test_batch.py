"""qnnkit.batch: planned as a whole, run side by side, taken up again after any kill.

Most tests run a stand-in for `qnnkit run` that trains nothing and leaves the same files: tests/stand_in.py.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from qnnkit import batch, recipes, report, warm, workspace
from qnnkit.batch import batch_file, engine, table, workers
from qnnkit.runs import State, chain
from tests.forked import begin, start
from tests.toys import typing

ROOT = Path(__file__).parents[2]
TINY = {"image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "epochs": 2, "n_seeds": 1}
TINY |= {"controls": ["classical"], "backend": "batched"}
BASE = {"name": "b", "recipe": "digits_quanv"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace of its own, in the current folder. What a test starts there has ended with the test."""
    begin()  # while no thread looks at the current folder
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for module, seconds in ((engine, 0.1), (workers, 0.05)):  # short waits
        monkeypatch.setattr(module, "LOOK", seconds)
    yield home
    left = processes(home)
    for process in left:
        process.kill()
    assert not left


def set_stand_in(folder, monkeypatch):
    """From now on runs are those of tests/stand_in.py."""
    (folder / "stand-in").mkdir()
    (folder / "stand-in" / "sitecustomize.py").write_text("import tests.stand_in")  # as Python starts
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "stand-in"), str(ROOT)]))
    monkeypatch.setenv("QNNKIT_STAND_IN", "1")


@pytest.fixture
def stand_in(home, tmp_path, monkeypatch):
    """Runs are those of tests/stand_in.py; gives a function: settings -> the content of a batch file."""
    set_stand_in(tmp_path, monkeypatch)
    return lambda **keys: {
        **BASE,
        "workers": 2,
        **keys,
        "settings": {"epochs": 3, **keys.get("settings", {})},
    }


@pytest.fixture(params=["forked", pytest.param("by itself", marks=pytest.mark.slow)])
def forked(request, monkeypatch):
    """Processes are forked, as on Linux, or each begins by itself, as elsewhere."""
    if request.param == "by itself":
        monkeypatch.setattr(warm, "_begun", False)
        monkeypatch.setenv("QNNKIT_STAND_IN", "by itself")


def processes(home):
    """Everything that was started for this workspace, but for this process: it works in the folder above."""
    found = []
    for process in psutil.process_iter():
        try:
            tracker = "resource_tracker" in " ".join(process.cmdline())  # Python's own, ends with its parent
            if process.cwd() == str(home.parent) and not tracker and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def is_run(process):
    """Whether a process is `qnnkit run`."""
    try:
        return process.name() == "qnnkit run" or process.cmdline()[1:4] == ["-m", "qnnkit", "run"]
    except psutil.NoSuchProcess:
        return False


def hold(home, n=1):
    """From now on runs wait after two epochs, from the nth that begins; gives what lets them go on."""
    (home / "hold").write_text(str(n))
    return lambda: (home / "hold").unlink(missing_ok=True)


def until(condition, seconds=60.0):
    """Waits for a condition to hold, and returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"it did not happen in time: {_left()}"
        time.sleep(0.02)
    return value


def _left():
    """What runs have written last, by file: the test works in the folder above the workspace."""
    files = [path for path in Path.cwd().rglob("runs/*/*") if path.suffix in (".jsonl", ".json", ".log")]
    return {str(path.relative_to(Path.cwd())): path.read_text()[-300:] for path in sorted(files)}


def calls(folder):
    """What the stand-in noted each time it was started in a run folder."""
    return workspace.read_lines(folder / "calls.jsonl")


def quietly(content, **options):
    """run_batch in this process; returns its outcomes and what it told."""
    told = []
    with warnings.catch_warnings():
        outcomes = batch.run_batch(content, echo=told.append, **options)
    return outcomes, told


@contextlib.contextmanager
def command(home, content, *words):
    """`qnnkit batch` as a process of its own, in its own group, as a terminal starts it."""
    path = home.parent / "batch.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    process = start("qnnkit", "batch", path, *words, log=home.parent / "out.txt")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(home, content, *words):
    """`qnnkit batch` to its end: exit status, and what it told."""
    (home.parent / "out.txt").unlink(missing_ok=True)
    with command(home, content, *words) as process:
        status = process.wait(180)
    return status, (home.parent / "out.txt").read_text()


# --- planning ----------------------------------------------------------------------------------------------


def varied(**keys):
    return list(batch_file.combinations(batch.read_config({**BASE, **keys})))


def planned(**keys):
    return batch_file.plan(batch.read_config({**BASE, **keys}))


@pytest.mark.parametrize("inside", [True, False])
def test_runs_of_a_batch_keep_their_names_where_workspace_or_data_move(tmp_path, monkeypatch, inside):
    """A relative data_dir is meant from the workspace."""
    ids, digests = [], []
    for name in ("first", "second"):
        mine = tmp_path / name / "my images"
        mine.mkdir(parents=True)
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


def test_grid_runs_and_seeds_combine_in_order():
    pairs = [{"hidden": 3, "filters": 1}, {"hidden": 4}]
    assert varied(runs=pairs) == pairs
    both = varied(grid={"epochs": [1, 2], "hidden": [3, 4]})
    assert both == [{"epochs": epochs, "hidden": hidden} for epochs in (1, 2) for hidden in (3, 4)]
    found = varied(grid={"epochs": [1, 2]}, runs=pairs, seeds=[0, 7])
    assert len(found) == 8 and found[0] == {"epochs": 1, "hidden": 3, "filters": 1, "seed": 0}
    assert found[1]["seed"] == 7 and found[-1] == {"epochs": 2, "hidden": 4, "seed": 7}


def test_a_list_of_recipes_is_run_with_all_the_rest(home):
    """Shipped ones, and files."""
    path = recipes.new(home / "digits_again.py")
    path.write_text(path.read_text().replace("stride: int = 1", "stride: int = 2"))
    both = ["digits_quanv", "digits_again.py"]
    config = batch.read_config({"name": "b", "recipe": both, "grid": {"hidden": [3, 4]}, "seeds": [0, 7]})
    assert batch_file.count(config) == 8
    found = batch_file.plan(config)
    assert [run.varied for run in found[:2]] == [
        {"recipe": "digits_quanv", "hidden": 3, "seed": 0},
        {"recipe": "digits_quanv", "hidden": 3, "seed": 7},
    ]
    assert [run.config.recipe for run in found] == ["digits_quanv"] * 4 + [str(path)] * 4
    assert [run.varied["recipe"] for run in found] == ["digits_quanv"] * 4 + ["digits_again"] * 4
    assert found[-1].folder == home / "runs" / f"digits_again-{found[-1].id}"
    assert found[0].words == ("hidden=3", "seed=0"), "the recipe has an option of its own"
    assert len({run.id for run in found}) == 8
    (alone,) = batch_file.plan(batch.read_config({**BASE, "recipe": ["digits_quanv"]}))
    assert (
        alone.varied == {"recipe": "digits_quanv"}
        and alone.id == batch_file.plan(batch.read_config(BASE))[0].id
    )


def test_the_study_of_the_docs_is_twelve_runs(home, monkeypatch):
    """Two hybrid nets and a reference at four fractions, ten seeds each in one run."""
    monkeypatch.chdir(ROOT)
    config = batch.read_config(ROOT / "docs" / "study.yaml")
    place = home / config.settings["data_dir"]
    place.mkdir(parents=True)
    found = batch_file.plan(config)
    assert len(found) == 12 and {run.config.n_seeds for run in found} == {10}
    assert {run.config.train_fraction for run in found} == {0.1, 0.25, 0.5, 1.0}
    assert {recipes.of(run.config).name for run in found} == {"ahcd_frozen", "ahcd_trained", "ahcd_cnn"}
    assert {run.config.data_dir for run in found} == {str(place)}


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("name: b\nrecipe: digits_quanv\ngrid: {learning_rate: [1e-3, 0.001, 2e-3]}\n")
    runs = batch_file.plan(batch.read_config(path))
    assert [run.varied for run in runs] == [{"learning_rate": 0.001}, {"learning_rate": 0.002}]
    assert runs[0].words == ("learning_rate=0.001",)


def test_identical_runs_are_planned_once(home):
    runs = planned(grid={"epochs": [12, 3, 3], "hidden": [24, 24]})
    assert [run.varied["epochs"] for run in runs] == [12, 3]
    (usual,) = planned(name="other", settings={"epochs": 3})  # hidden 24 is the recipe's own
    assert usual.varied == {} and usual.words == ("epochs=3",)
    assert usual.config == recipes.settings("digits_quanv", epochs=3)
    assert usual.folder == runs[1].folder == home / "runs" / f"digits_quanv-{usual.config.digest()[:12]}"


@pytest.mark.parametrize("recipe", ["digits_quanv", ["digits_quanv", "folder_quanv"]])
def test_a_batch_file_and_its_copy_are_the_same_batch(tmp_path, recipe):
    content = {**BASE, "recipe": recipe, "runs": [{"epochs": 3}], "seeds": [1, 2], "retries": 1}
    if isinstance(recipe, str):
        space = {"hidden": {"low": 1, "high": 3, "int": True}, "circuit": ["random"]}
        content = {**BASE, "optuna": {"n_trials": 3, "space": space}}
    config = batch.read_config(content)
    (tmp_path / "copy.yaml").write_text(
        yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_unset=True))
    )
    assert batch.read_config(tmp_path / "copy.yaml") == config


# --- refusals ----------------------------------------------------------------------------------------------

OPTUNA = {"n_trials": 2, "space": {"hidden": [1, 2]}}
SPACE = {"low": 2, "high": 3}
BAD = [
    ("key of the batch", {"gird": {}}), ("name", {"name": None}), ("name", {"name": "../b"}),
    ("recipe", {"recipe": "digit_quanv"}), ("recipe", {"recipe": []}),
    ("recipe", {"recipe": ["digits_quanv", "digit_quanv"]}),
    ("pretrained", {"recipe": "text_adapter", "grid": {"epochs": [1]}}),
    ("recipe", {"settings": {"recipe": "folder_quanv"}}), ("recipe", {"grid": {"recipe": ["cnn"]}}),
    ("setting", {"settings": {"epocs": 1}}), ("setting", {"grid": {"epocs": [1]}}),
    ("grid.epochs", {"grid": {"epochs": []}}),
    ("grid.epochs", {"grid": {"epochs": 3}}), ("epochs", {"grid": {"epochs": [2.5]}}),
    ("epochs", {"grid": {"epochs": [1, 0]}}), ("circuit", {"grid": {"circuit": ["data_reuploadin"]}}),
    ("grid.image_size.0", {"grid": {"image_size": [None]}}), ("backend", {"grid": {"backend": ["batched"]}}),
    ("learning_rate", {"grid": {"learning_rate": [float("nan")]}}),
    ("batch_size", {"grid": {"batch_size": [8, "auto"]}}),
    ("epochs", {"grid": {"epochs": [1]}, "settings": {"epochs": 2}}),
    ("seed", {"grid": {"seed": [1]}, "seeds": [1]}),
    ("runs", {"runs": {"epochs": 1}}), ("setting", {"runs": [{"epocs": 1}]}),
    ("epochs", {"runs": [{"epochs": 1}], "grid": {"epochs": [2]}}), ("seeds.0", {"seeds": [-1]}),
    ("notebook", {"notebooks": ["03_trian"]}), ("notebooks", {"notebooks": ["04_analyze"]}),
    ("workers", {"workers": 0}), ("gpus_per_run", {"gpus_per_run": 99}),
    ("optuna", {"optuna": OPTUNA, "recipe": ["digits_quanv"]}),
    ("optuna", {"optuna": OPTUNA, "grid": {"epochs": [1]}}),
    ("optuna.n_trials", {"optuna": {"space": {"hidden": [1]}}}),
    ("optuna.n_trials", {"optuna": {**OPTUNA, "n_trials": 0}}),
    ("optuna.spcae", {"optuna": {**OPTUNA, "spcae": {}}}),
    ("optuna.sampler", {"optuna": {**OPTUNA, "sampler": "tep"}}),
    *((name, {"optuna": {**OPTUNA, "space": {"hidden": space}}}) for name, space in (
        ("hidden", [1, 0]), ("optuna.space.hidden.high", {"low": 2, "hgih": 3}),
        ("optuna.space.hidden.logs", SPACE | {"logs": True}), ("optuna.space.hidden", SPACE | {"low": 3}),
        ("optuna.space.hidden", SPACE | {"low": 0, "log": True}),
        ("optuna.space.hidden", SPACE | {"high": 4.5, "int": True}),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "keys"), BAD, ids=range(len(BAD)))
def test_a_bad_batch_is_refused_before_anything_is_written(home, argument, keys):
    with pytest.raises((ValueError, OSError)) as caught:
        batch.run_batch({**BASE, **keys}, echo=print)
    told = str(caught.value)
    assert f"`{argument}`" in told and "\n" not in told and told.endswith((".", "?"))
    assert list(home.iterdir()) == []


TEXTS = {
    "must hold keys and values": ["", "- 1\n- 2"],
    "`key of the batch` must be a known name": ["1: 2"],
    "must be plain YAML": ["name: \x07", "name: a\n\trecipe: b", "name: 2024-13-45", "[" * 1000 + "]" * 1000],
    "must be plain YAML, but is not in line": ["name: ["],
    "in line 2: `name` is given twice": ["name: a\nname: b"],
    "in line 2: a key is no word": ["name: a\n? [1, 2]\n: b"],
    "it links with `*`": ["a: &a [1, 2]\nb: *a"],
    "`name` must be given": ["recipe: digits_quanv"],
    "`recipe` must be given": ["name: a"],
    "must be a number, a text": ["name: a\nrecipe: digits_quanv\nsettings: {data_dir: 2024-01-01}"],
}


@pytest.mark.parametrize(("told", "text"), [(told, text) for told, texts in TEXTS.items() for text in texts])
def test_text_that_is_no_batch(home, tmp_path, told, text):
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(ValueError) as caught:
        batch.run_batch(tmp_path / "b.yaml")
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert list(home.iterdir()) == []


def test_a_file_that_is_missing_or_no_text(home, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Cannot read batch file .*No such file"):
        batch.run_batch(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ValueError, match="Save it as UTF-8"):
        batch.run_batch(tmp_path / "b.yaml")


ATTACKS = (
    "!!python/object/apply:os.system ['touch {mark}']", "!!python/object/new:os.system ['touch {mark}']",
    "!!python/name:os.system", "!!python/module:antigravity", "!!python/tuple [1, 2]", "!include /etc/passwd",
    "!!python/object/apply:subprocess.check_call [[touch, '{mark}']]",
    '!!python/object/apply:builtins.eval [\'__import__("os").system("touch {mark}")\']',
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("line", ["name: {}", "settings: {{epochs: {}}}", "grid: {{epochs: [{}]}}", "{}"])
def test_code_in_a_batch_file_is_never_executed(home, tmp_path, attack, line):
    mark, path = tmp_path / "executed", tmp_path / "b.yaml"
    others = {key: value for key, value in BASE.items() if line != "{}" and key != line.split(":")[0]}
    path.write_text(yaml.safe_dump(others) * bool(others) + line.format(attack.format(mark=mark)) + "\n")
    with pytest.raises(ValueError, match="must be plain YAML"):
        batch.run_batch(path)
    assert not mark.exists() and list(home.iterdir()) == []


@pytest.mark.parametrize(("module", "extra"), [("distributed", "cluster"), ("optuna", "sweep")])
def test_a_missing_extra_says_what_to_type(home, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {module}.*pip install 'qnnkit\[{extra}\]'"):
        batch.run_batch({**BASE, "optuna": OPTUNA}, echo=print, scheduler="tcp://127.0.0.1:9")
    assert list(home.iterdir()) == []


# --- shares ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "wanted", "gpus", "expected"),
    [
        ({}, 1, 0, (8, 1)), ({}, None, 0, (8, 1)), ({}, 4, 0, (2, 4)), ({"seeds": [0, 1, 2]}, 1, 0, (3, 2)),
        ({"workers": 3}, 1, 0, (3, 2)), ({"workers": 20}, 1, 0, (20, 1)), ({"gpus_per_run": 1}, 1, 4, (4, 2)),
        ({"gpus_per_run": 2}, 1, 4, (2, 4)), ({"gpus_per_run": 1, "workers": 3}, 1, 4, (3, 2)),
    ],
)  # fmt: skip
def test_cores_gpus_and_memory_bound_the_workers(monkeypatch, keys, wanted, gpus, expected):
    monkeypatch.setattr(workers.machine, "cores", lambda: 8)
    monkeypatch.setattr(workers, "RUN_BYTES", 1)
    config = batch.read_config({**BASE, "seeds": list(range(100)), **keys})
    assert workers.shares(config, wanted, gpus) == expected
    if not keys:
        monkeypatch.setattr(workers, "RUN_BYTES", workers.machine.memory()[1] / 2.5)
        assert workers.shares(config, 1, 0)[0] in (2, 3)


# --- running -----------------------------------------------------------------------------------------------


def test_a_list_of_recipes_runs(stand_in, home):
    """Each run is told its own recipe, and never more threads than that asks for."""
    content = stand_in(recipe=["digits_quanv", "folder_quanv"], notebooks=["03_train"])
    (home / "pictures").mkdir()
    content["settings"] |= {"data_dir": "pictures", "device": "cpu"}
    outcomes, _ = quietly(content)
    assert [each.state for each in outcomes] == ["finished"] * 2
    assert [each.settings["recipe"] for each in outcomes] == ["digits_quanv", "folder_quanv"]
    for each in outcomes:
        (call,) = calls(each.folder)
        assert call["threads"] == "1" and call["settings"]["device"] == "cpu"
        assert call["words"][4:6] == ["--notebooks", "03_train"]
    listed = json.loads((home / "batches" / "b" / "batch.json").read_text())
    assert listed["recipe"] == ["digits_quanv", "folder_quanv"]


def test_a_batch_runs_and_is_kept(stand_in, home):
    content = stand_in(grid={"learning_rate": [0.1, 0.2, 0.3]}, settings={"threads": 2}, workers=1)
    outcomes, told = quietly(content)
    assert [each.state for each in outcomes] == ["finished"] * 3
    assert [each.settings for each in outcomes] == [{"learning_rate": rate} for rate in (0.1, 0.2, 0.3)]
    assert outcomes[-1].validation == pytest.approx(1.0)
    folder = home / "batches" / "b"
    assert batch.read("batches/b") == outcomes == batch.read(folder)
    assert yaml.safe_load((folder / "batch.yaml").read_text()) == content
    listed = json.loads((folder / "batch.json").read_text())
    assert listed.keys() == {"name", "recipe", "score", "runs"}
    for row, each in zip(listed["runs"], outcomes, strict=True):
        assert (
            row.keys() == {"id", "folder", "settings"} and (folder / row["folder"]).resolve() == each.folder
        )
        (call,) = calls(each.folder)
        assert call["threads"] == "2" and call["settings"]["threads"] == 2
        assert call["words"][4:6] == ["--notebooks", "03_train,04_analyze"]
    assert {path.name for path in folder.glob("[!.]*")} == {"batch.yaml", "batch.json"}
    assert told[0] == "Batch b: 3 runs." and sum("  finished" in line for line in told) == 3

    def files():
        return {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*")}

    before = files()
    again, told = quietly(content)
    assert again == outcomes and told == ["Batch b: 3 runs."]
    assert files() == before
    frame = batch.frame(outcomes)
    assert frame["learning_rate"].tolist() == [0.1, 0.2, 0.3] and set(frame["state"]) == {"finished"}


def test_a_finished_run_that_drive_lacks_is_mirrored(stand_in, home, tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "machine"))
    content = stand_in()
    (run,) = batch_file.plan(batch.read_config(content))
    local = workspace.run_folder(run.folder)
    workspace.write_json(workspace.make_folder(local) / "config.json", {})
    workspace.write_json(local / "result.json", {"score": 1.0})
    (home / "runs").write_text("no folder can be made here")
    _, told = quietly(content)
    assert told[1].startswith("Its worker could not run it: Folder")
    (home / "runs").unlink()
    outcomes, told = quietly(content)
    assert [each.state for each in outcomes] == ["finished"] and len(told) == 1
    assert json.loads((run.folder / "result.json").read_text()) == {"score": 1.0}


def test_a_failure_stops_no_other_and_is_tried_as_told(stand_in):
    content = stand_in(grid={"hidden": [99, 98, 4]}, retries=1)
    outcomes, told = quietly(content)
    assert [each.state for each in outcomes] == ["failed", "finished", "finished"]
    failed, mended, _ = outcomes
    assert failed.error == "Notebook 03_train.ipynb stopped: It diverged."
    assert failed.notebook == failed.folder / "notebooks" / "03_train.failed.ipynb"
    assert failed.notebook.exists() and not (mended.folder / "failed.json").exists()
    assert [len(calls(each.folder)) for each in outcomes] == [2, 2, 1]
    assert any("failed: Notebook 03_train" in line for line in told)
    assert [each.state for each in quietly(content | {"retries": 0})[0]] == ["failed", "finished", "finished"]
    assert [len(calls(each.folder)) for each in outcomes] == [3, 2, 1], "the same command tries it again"


def test_what_has_finished_is_not_run_again_whichever_batch_asks(stand_in):
    first, _ = quietly(stand_in(grid={"hidden": [3, 4]}))
    other, told = quietly(stand_in(name="c", runs=[{"hidden": 4}, {"hidden": 5}, {"hidden": 5}]))
    assert told[0] == "Batch c: 2 runs (1 more are identical to others and run once)."
    changed, _ = quietly(stand_in(grid={"hidden": [4, 5]}))
    assert changed[0] == first[1] and {each.state for each in (*other, *changed)} == {"finished"}
    assert [len(calls(each.folder)) for each in (*first, *other)] == [1] * 4


def test_each_run_has_its_own_gpus(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    outcomes, _ = quietly(stand_in(grid={"hidden": [3, 4, 5]}, gpus_per_run=2))
    seen = [calls(each.folder)[0]["gpus"] for each in outcomes]
    assert set(seen) == {"GPU-a,GPU-b", "GPU-c,GPU-d"}


def test_two_runs_at_a_time_and_no_port_is_listened_on(stand_in, home):
    release = hold(home)
    with command(home, stand_in(grid={"hidden": [3, 4, 5, 6]})) as process:
        until(lambda: [epochs_of(each) for each in written(home)] == [2, 2, 0, 0])
        there = processes(home)
        assert sum(map(is_run, there)) == 2 and process.pid in [each.pid for each in there]
        connections = [one for each in there for one in each.net_connections("inet")]
        assert [one for one in connections if one.status == psutil.CONN_LISTEN] == []
        release()
        assert process.wait(60) == 0
    assert [each.state for each in written(home)] == ["finished"] * 4


# --- kills -------------------------------------------------------------------------------------------------


def written(home):
    """The outcomes of the batch `b`; none before it is planned."""
    folder = home / "batches" / "b"
    return batch.read(folder) if (folder / "batch.json").exists() else []


SLOW = {"settings": {"epochs": 4}, "grid": {"hidden": [3, 4, 5]}}


def undisturbed(outcomes):
    """What the stand-in would have written, had nobody killed it."""
    for each in outcomes:
        assert each.state == "finished", each
        assert [row.get("epoch") for row in workspace.read_lines(each.folder / "metrics.jsonl")] == [
            1,
            2,
            3,
            4,
            None,
        ]


def epochs_of(outcome):
    return sum(row["event"] == "epoch" for row in workspace.read_lines(outcome.folder / "metrics.jsonl"))


@contextlib.contextmanager
def held(home, *given):
    """A command whose runs wait after two epochs each; gives it, and what lets them go on."""
    release = hold(home)
    with command(home, *given) as process:
        until(lambda: [epochs_of(each) for each in written(home)][:2] == [2, 2])
        yield process, release


def test_a_killed_worker_loses_nothing(stand_in, home):
    with (
        scheduler(home, workers=2) as (address, workers),
        held(home, stand_in(**SLOW), "--scheduler", address) as (process, release),
    ):
        begun = [psutil.Process(calls(each.folder)[0]["pid"]) for each in written(home)[:2]]
        workers[0].kill()
        workers[0].wait()
        until(lambda: not all(each.is_running() and is_run(each) for each in begun))
        release()
        assert process.wait(120) == 0
    undisturbed(written(home))
    assert sorted(len(calls(each.folder)) for each in written(home)) == [1, 1, 2]


@pytest.mark.usefixtures("forked")
def test_a_killed_run_is_a_failure_and_goes_on_when_tried_again(stand_in, home):
    with held(home, stand_in(**SLOW, retries=1)) as (process, release):
        next(each for each in processes(home) if is_run(each)).kill()
        release()
        assert process.wait(120) == 0
    undisturbed(written(home))
    assert "SIGKILL" not in (home.parent / "out.txt").read_text().splitlines()[-1]
    assert sorted(len(calls(each.folder)) for each in written(home)) == [1, 1, 2]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_killed_batch_goes_on(stand_in, home, when):
    """The next command does not wait for what the killed one has left behind: it ends that itself."""
    with held(home, stand_in(**SLOW)) as (process, release):
        process.kill()
        if when == "later":
            until(lambda: processes(home) == [])
    release()
    if when == "later":
        until(
            lambda: {each.state for each in written(home)} <= {"waiting", "stopped"}
        )  # one that ends drops its lock last
    outcomes, _ = quietly(stand_in(**SLOW))
    undisturbed(outcomes)
    assert when == "at once" or sorted(len(calls(each.folder)) for each in outcomes) == [1, 2, 2]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_ctrl_c_stops_cleanly_and_goes_on(stand_in, home, sign):
    with held(home, stand_in(**SLOW)) as (process, release):
        if sign == signal.SIGINT:
            os.killpg(process.pid, sign)  # as a terminal does: to the batch and its workers
        else:
            process.send_signal(sign)
        assert process.wait(60) == 128 + sign
    assert processes(home) == []
    assert {each.state for each in written(home)} <= {"waiting", "stopped", "finished"}
    text = (home.parent / "out.txt").read_text()
    assert "Stopping: checkpoints are written. Type the same command again to resume." in text
    assert "Traceback" not in text and "Error" not in text
    release()
    undisturbed(quietly(stand_in(**SLOW))[0])


def test_a_second_command_is_refused(stand_in, home, monkeypatch):
    monkeypatch.setattr(engine, "alone", partial(engine.alone, wait=0))
    with held(home, stand_in(**SLOW)) as (process, release):
        with pytest.raises(BlockingIOError, match="is in use by another process"):
            quietly(stand_in(**SLOW))
        release()
        assert process.wait(60) == 0
    undisturbed(written(home))


# --- a scheduler elsewhere ---------------------------------------------------------------------------------


@contextlib.contextmanager
def scheduler(home, workers=1, protocol="tcp", options=("--nthreads", 1)):
    """A scheduler and workers as a person starts them: its address, and they, the scheduler last."""
    file, log = home.parent / "scheduler.json", home.parent / "dask.txt"
    words = ("--scheduler-file", file, "--protocol", protocol, "--host", "127.0.0.1", "--no-dashboard")
    # What a killed test leaves behind ends by itself: the worker with its scheduler, that once it is idle.
    started = [start("dask", "scheduler", *words, "--port", 0, "--idle-timeout", 300, log=log)]
    try:
        address = json.loads(until(lambda: file.exists() and file.read_text()))["address"]
        for _ in range(workers):
            started.insert(
                0, start("dask", "worker", *words, "--no-nanny", "--death-timeout", 60, *options, log=log)
            )
        yield address, started
    finally:
        for process in started:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a worker may wait for its own tasks
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The address of a scheduler with one worker, which has two threads and two GPUs."""
    home = tmp_path_factory.mktemp("elsewhere") / "home"
    with pytest.MonkeyPatch.context() as patched:
        set_stand_in(home.parent, patched)
        patched.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
        patched.chdir(home.parent)
        with scheduler(home, options=("--nthreads", 2)) as (address, _):
            patched.undo()
            yield address


def test_two_runs_on_one_worker_of_a_scheduler_have_a_gpu_each(stand_in, home, elsewhere):
    release = hold(home)

    def echo(line):
        told.append(line)
        if "2 running" in line and (home / "hold").exists():  # each of the two has such a line
            until(lambda: [epochs_of(each) for each in written(home)] == [2, 2, 0])
            release()

    told, content = [], stand_in(grid={"hidden": [3, 4, 5]}, gpus_per_run=1)
    outcomes = batch.run_batch(content, echo=echo, scheduler=elsewhere)
    assert [each.state for each in outcomes] == ["finished"] * 3
    seen = [calls(each.folder)[0]["gpus"] for each in outcomes]
    assert sorted(seen[:2]) == ["GPU-a", "GPU-b"] and seen[2] in seen[:2]


@pytest.mark.slow
def test_a_scheduler_that_dies(stand_in, home):
    with (
        scheduler(home, workers=2) as (address, started),
        held(home, stand_in(**SLOW), "--scheduler", address) as (run, release),
    ):
        started[-1].kill()
        assert run.wait(60) == 2
    assert "qnnkit: The scheduler is gone." in (home.parent / "out.txt").read_text()
    until(lambda: processes(home) == [])
    release()
    undisturbed(quietly(stand_in(**SLOW))[0])


def test_a_scheduler_that_does_not_answer_or_has_no_workers(stand_in, home, monkeypatch):
    """Also where nothing is left to run: nothing that was given is passed over."""
    monkeypatch.setattr(workers, "TIMEOUT", 1)
    with scheduler(home, workers=0) as (address, _):
        for place in ("tcp://127.0.0.1:9", "tls://127.0.0.1:9", address):
            told = rf"No scheduler with a worker answers at {place} \(.*`dask worker {place} --nthreads 1`\.$"
            with pytest.raises(ConnectionError, match=told):
                quietly(stand_in(), scheduler=place)
        assert list(home.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self stands in for a disk of each process's own")
def test_a_worker_that_sees_another_disk_stops_the_batch_with_one_sentence(
    stand_in, home, monkeypatch, elsewhere
):
    monkeypatch.chdir(home)
    with pytest.raises(ConnectionError, match=r"A worker does not see .*Set QNNKIT_HOME to a folder"):
        quietly(stand_in(grid={"hidden": [3, 4]}), scheduler=elsewhere, folder="/proc/self/cwd/elsewhere")
    assert [each.state for each in batch.read(home / "elsewhere")] == ["waiting"] * 2


# --- what is told ------------------------------------------------------------------------------------------


def outcome(**facts):
    return State(**{"id": "a", "folder": Path("/a"), "settings": {"hidden": 3, "rate": 0.1 + 0.2}} | facts)


def test_a_run_and_a_batch_in_a_line():
    row = {"net": "hybrid", "seed": 0, "epoch": 3, "epochs": 5, "step": 2, "steps": 4}
    now = outcome(state="running", row=row, validation=0.5)
    words = "hidden=3 rate=0.3  a  running  hybrid, seed 0  epoch 3/5, step 2/4  validation accuracy 50.0 %"
    assert table.run_line(now) == words
    outcomes = [now, outcome(state="failed"), *[outcome()] * 30]
    told = "1 running, 1 failed, 30 waiting, 0 finished, about 1 min 40 s left"
    assert table.summary(outcomes, 100.0) == told


def test_a_terminal_shows_each_change(stand_in, home):
    import pty

    ours, theirs = pty.openpty()
    path = home.parent / "batch.yaml"
    path.write_text(yaml.safe_dump(stand_in(grid={"hidden": [3, 99]}, settings={"warmup_epochs": 0.1})))
    size = {"COLUMNS": "140", "LINES": "40", "TERM": "xterm"}
    process = start("qnnkit", "batch", path, log=Path(os.ttyname(theirs)), env=size)
    text = b""
    while process.poll() is None or select.select([ours], [], [], 0.1)[0]:
        if select.select([ours], [], [], 0.1)[0]:
            text += os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    seen = text.decode()
    assert process.returncode == 1, seen
    for told in ("hidden=3", "1 failed, 1 finished", "It diverged.", "Report: "):
        assert told in seen
    assert "Traceback" not in seen


@pytest.mark.parametrize(
    ("log", "status", "told"),
    [
        ("[1/5] ...\nqnnkit: It broke.\n", 2, "It broke."), ("", 3, "it printed nothing"),
        ("Trace\nRuntimeError: odd\n", 1, "stopped (1): RuntimeError: odd Its log is"),
        ("", -9, "ended from outside (SIGKILL): it printed nothing Memory may have run out"),
        ("", -15, "ended from outside (SIGTERM): it printed nothing Its log"),
    ],
)  # fmt: skip
def test_why_a_run_ended(tmp_path, log, status, told):
    begin = "qnnkit: of an earlier attempt\n"
    (tmp_path / "log.txt").write_text(begin + log)
    assert told in workers.reason(tmp_path / "log.txt", len(begin), status)


# --- a sampler ---------------------------------------------------------------------------------------------

STUDY = {"n_trials": 5, "sampler": "tpe", "seed": 1, "startup_trials": 2, "warmup_epochs": 0}
STUDY |= {"space": {"learning_rate": {"low": 0.01, "high": 1.0}}}


@pytest.fixture
def studies(monkeypatch):
    """The studies that this process makes, oldest first."""
    import optuna

    made, create = [], optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **options: made.append(create(**options)) or made[-1])
    return made


def test_a_sampler_proposes_learns_and_prunes(stand_in, home, studies):
    """The third run waits after two epochs until it is given up: it is worse than the median of two."""
    content, told, release = stand_in(optuna=STUDY, workers=1), [], hold(home, 3)

    def echo(line):
        told.append(line)
        if "pruned" in line:
            release()

    outcomes = batch.run_batch(content, echo=echo)
    assert told[0] == "Batch b: up to 5 runs, proposed by tpe."
    again, _ = quietly(content)
    assert again == outcomes and len(outcomes) == 5
    for study in studies:  # the second is made of the files alone
        for trial, run in zip(study.trials, outcomes, strict=True):
            assert trial.params["learning_rate"] == pytest.approx(run.settings["learning_rate"])
            assert trial.state.name == {"finished": "COMPLETE", "pruned": "PRUNED"}[run.state]
            if run.state == "finished":
                assert trial.value == pytest.approx(1 - abs(trial.params["learning_rate"] - 0.3))
                assert set(trial.intermediate_values) == {1, 2, 3}
    pruned = outcomes[2]
    assert pruned.state == "pruned" and "worse than other runs" in pruned.error and pruned.notebook is None
    assert epochs_of(pruned) < 3
    assert len(quietly(stand_in(optuna={**STUDY, "n_trials": 6, "pruner": "none"}, workers=1))[0]) == 6


def test_of_a_loss_the_least_is_best(stand_in, home, studies):
    study = {**STUDY, "n_trials": 3, "pruner": "none"}
    outcomes, _ = quietly(stand_in(recipe="text_llama", optuna=study))
    trials = studies[0].trials
    for each in trials:
        assert each.value == pytest.approx(3 + abs(each.params["learning_rate"] - 0.3))
    assert studies[0].best_value == min(each.value for each in trials)
    assert [each.validation for each in outcomes] == pytest.approx([each.value for each in trials])
    assert json.loads((home / "batches" / "b" / "batch.json").read_text())["score"]["name"] == "loss"
    assert batch.frame(outcomes)["best validation loss of a seed"].tolist() == [
        each.validation for each in outcomes
    ]


def test_a_killed_study_resumes_as_undisturbed(stand_in, home, studies):
    """One run at a time: the trials are those of a study that nobody killed, to the last digit."""
    space = {**STUDY["space"], "controls": [["classical"], ["no_quantum"]], "optimizer": ["adam", "sgd"]}
    study = {**STUDY, "n_trials": 5, "pruner": "none", "space": space}
    content = stand_in(optuna=study, workers=1)
    release = hold(home, 2)
    with command(home, content) as process:
        until(lambda: [epochs_of(each) for each in written(home)] == [3, 2])
        process.kill()
    release()
    outcomes, _ = quietly(content)
    assert [each.state for each in outcomes] == ["finished"] * 5
    calm, _ = quietly(stand_in(name="calm", optuna=study, workers=1))
    assert [each.id for each in calm] == [each.id for each in outcomes]
    killed, undisturbed = ([(each.params, each.value) for each in study.trials] for study in studies)
    assert killed == undisturbed


def test_trials_of_another_space_or_recipe_are_left_out(stand_in, home, studies):
    study = {"n_trials": 3, "sampler": "random", "space": {"hidden": [3, 4, 5]}, "pruner": "none"}
    before, _ = quietly(stand_in(optuna=study))
    path = home / "batches" / "b" / "batch.json"  # as version 0.1 has left it
    listed = json.loads(path.read_text())
    del listed["trials"]
    path.write_text(json.dumps(listed))
    assert {each.id for each in before} <= {each.id for each in quietly(stand_in(optuna=study))[0]}
    narrower = {**study, "n_trials": 2, "space": {"hidden": [3]}}
    assert {each.settings["hidden"] for each in quietly(stand_in(optuna=narrower))[0]} == {3}
    other, _ = quietly(stand_in(optuna=study, settings={"seed": 1}))
    assert not {each.id for each in other} & {each.id for each in before} and len(studies[-1].trials) == 3


def test_what_is_proposed_twice_is_run_once(stand_in, home, studies):
    """Choices may be lists."""
    space = {"controls": [["classical"], ["classical", "frozen_random"]]}
    study = {"n_trials": 6, "sampler": "random", "space": space, "pruner": "none"}
    for _ in range(2):
        outcomes, _ = quietly(stand_in(optuna=study))
        assert [each.settings["controls"] for each in outcomes] in (
            space["controls"],
            space["controls"][::-1],
        )
        assert [len(calls(each.folder)) for each in outcomes] == [1, 1]
        assert [each.state.name for each in studies[-1].trials].count("COMPLETE") == 2
        assert len(studies[-1].trials) == 6


def test_a_failed_trial_is_tried_again_by_the_next_command(stand_in, home, studies):
    study = {"n_trials": 3, "sampler": "random", "space": {"hidden": [98]}, "pruner": "none"}
    content = stand_in(optuna=study, workers=1)
    assert [each.state for each in quietly(content)[0]] == ["failed"]
    assert [each.state for each in quietly(content)[0]] == ["finished"]
    assert [each.state.name for each in studies[-1].trials] == ["COMPLETE", "FAIL", "FAIL"]


# --- the real thing ----------------------------------------------------------------------------------------


def small(pictures, **keys):
    """A batch of real runs."""
    settings = {**TINY, "data_dir": str(pictures), **keys.pop("settings", {})}
    return {"name": "b", "recipe": "folder_quanv", "settings": settings, "workers": 2, **keys}


def test_a_batch_of_03_train_alone_ends_with_a_result_and_a_page(home, pictures, monkeypatch, capfd):
    outcomes, _ = quietly(small(pictures, notebooks=["03_train"]))
    assert [each.state for each in outcomes] == ["finished"], outcomes[0].error
    folder = outcomes[0].folder
    assert [path.stem for path in (folder / "notebooks").iterdir()] == ["03_train"]
    assert (folder / "report.html").exists()
    log = (folder / "run.log").read_text()
    assert len(re.findall(r"epoch +1/2", log)) == 2 and log.count("03_train ...") == 1, "each line once"
    assert f"{folder.name}/report.html" in report.write_batch_page(home / "batches" / "b").read_text()
    monkeypatch.setattr(chain, "launch", lambda notebook, output, *_: output.write_text("{}"))
    qnnkit = typing(monkeypatch, capfd)
    told = [qnnkit("run", "--run-dir", folder, "--notebooks", "04_analyze")[1] for _ in range(2)]
    assert "[1/1] 04_analyze: done" in told[0], "what is named runs, though there is a result"
    assert "04_analyze" not in told[1].split("Report:")[0], "once"


def kernels(home):
    return [each for each in processes(home) if "qnnkit.kernel" in " ".join([each.name(), *each.cmdline()])]


@pytest.mark.slow
def test_real_runs_stop_cleanly_fail_alone_and_go_on(home, pictures):
    """One run diverges and keeps its notebook; Ctrl-C in the middle leaves no kernel behind."""
    content = small(pictures, grid={"learning_rate": [0.01, 1e30]})
    with command(home, content) as process:
        until(lambda: kernels(home), 90)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(90) == 130
    assert processes(home) == []
    status, text = finish(home, content)
    good, bad = written(home)
    assert status == 1, text
    assert good.state == "finished" and good.validation is not None
    assert sorted(path.stem for path in (good.folder / "notebooks").iterdir()) == ["03_train", "04_analyze"]
    assert bad.state == "failed" and bad.notebook is not None and bad.notebook.exists()
    assert "stopped:" in bad.error and f"failed: {bad.error}" in text
    assert f"Report: {home / 'batches' / 'b' / 'report.html'}" in text
    assert processes(home) == []


@pytest.mark.slow
def test_twenty_four_real_runs_at_a_time_clash_nowhere(home, pictures):
    status, text = finish(home, small(pictures, grid={"learning_rate": [0.01, 0.02]}, seeds=list(range(12))))
    assert status == 0, text
    assert [each.state for each in written(home)] == ["finished"] * 24


@pytest.mark.slow
def test_the_study_notebook(home):
    from qnnkit import runs

    values = {"run_dir": "batches/toy", "epochs": 1, "n_seeds": 2, "workers": 2, "fractions": [0.5, 1.0]}
    copy = home / "batches" / "toy" / "06_study.ipynb"
    runs.launch(ROOT / "notebooks" / "06_study.ipynb", copy, values)
    assert [each.state for each in batch.read("batches/toy")] == ["finished"] * 2
    page = (home / "batches" / "toy" / "report.html").read_text()
    assert re.search(r"undecided\s+of\s+4\.", page) and 'href="study/"' in page
    assert page.count("data:image/png;base64,") == 4, "what the notebook had shown when it wrote the page"
