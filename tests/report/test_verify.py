"""qnnkit.report.verify: every kind of damage to a finished run is found, and named."""

import hashlib
import json
import shutil
import subprocess

import pytest

from qnnkit import report, runs, workspace
from qnnkit.report.verify import hashes, verify
from qnnkit.runs import rows
from tests.showing import log_test


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pictures):
    """A workspace with a run on images, finished by the real report, and every kind of file in its folder."""
    place = tmp_path_factory.mktemp("whole")
    shutil.copytree(pictures, place / "pictures")
    settings = {"data_dir": "pictures", "image_size": 6, "controls": ["classical"], "n_seeds": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_HOME", str(place))
        finish(runs.open_run("run", "folder_quanv", **settings))
    return place


@pytest.fixture
def finished(whole, tmp_path, monkeypatch):
    """That run in a copy of its workspace."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return runs.open_run("run")


def finish(run):
    run.note_provenance(data=run.splits.fingerprint())
    for net in run.nets:
        log_test(run, net, 0, 0.5)
    books = [f"notebooks/{name}.ipynb" for name in ("03_train", "03_train.failed", "04_analyze.running")]
    for name in (*books, "notebooks/04_analyze.ipynb", "train.log", ".hidden", ".sync/piece"):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text("{}")
    result = report.finish(run)
    for net in run.nets:  # in words: nothing can be read of them, which `finish` would
        name = f"checkpoint-000012-{net}.safetensors"
        (workspace.make_folder(run.checkpoints(net, 0)) / name).write_text(f"the weights of {net}")
    rows.write_hashes(run.folder, hashes(run.folder))
    workspace.write_json(run.folder / "result.json", result)


def checkpoint(run, net="hybrid"):
    return next(run.checkpoints(net, 0).glob("checkpoint-*"))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- hashes ------------------------------------------------------------------------------------------------


def test_an_untouched_run_is_as_it_was(finished):
    found = hashes(finished.folder)
    names = [name.relative_to(finished.folder).as_posix() for name in finished.folder.rglob("checkpoint-*")]
    kept = {"config.json", "metrics.jsonl", "provenance.json", "recipe.py", "report.html"}
    assert found.keys() == {*names, *kept, "notebooks/03_train.ipynb"} and len(names) == 2
    for name, digest in found.items():
        assert digest == hashlib.sha256((finished.folder / name).read_bytes()).hexdigest()
    assert verify(finished) == dict.fromkeys(sorted(found), "OK")


def test_what_comes_later_is_no_damage_nor_is_a_move(finished, tmp_path):
    """A notebook that is run again, the copy of 04 that papermill writes last."""
    later = ("benchmark.jsonl", "machine.json", "figures/benchmark_step.png")
    later += ("notebooks/04_analyze.ipynb",)
    (finished.folder / "figures").mkdir(exist_ok=True)
    for name in (*later, "batch.log", ".lock"):
        (finished.folder / name).write_text("something else")
    (finished.folder / "notebooks" / "03_train.running.ipynb").write_text("{}")
    assert {*verify(finished).values()} == {"OK"}
    moved = shutil.move(finished.folder, tmp_path / "elsewhere")
    assert {*verify(runs.open_run(moved)).values()} == {"OK"}


# --- damage ------------------------------------------------------------------------------------------------


def rewritten(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new))


DAMAGES = {
    "a flipped bit": (lambda run: rewritten(checkpoint(run), b"weights", b"x"), "checkpoint"),
    "a changed number": (lambda run: rewritten(run.folder / "metrics.jsonl", b"0.5", b"0.9"), "metrics"),
    "a missing file": (lambda run: checkpoint(run).unlink(), "checkpoint"),
    "other settings": (
        lambda run: edit(run.folder / "config.json", epochs=run.config.epochs + 1), "config.json"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named(finished, name):
    damage, file = DAMAGES[name]
    damage(finished)
    found = verify(runs.open_run(finished.folder))
    assert len(found) == 8
    [wrong] = [each for each, told in found.items() if told == "FAILED"]
    assert file in wrong


def test_the_sums_are_read_by_the_systems_own_tool(finished):
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("no sha256sum here")
    command = [tool, "--check", "--quiet", rows.SUMS]
    assert subprocess.run(command, cwd=finished.folder, capture_output=True).returncode == 0
    (finished.folder / "metrics.jsonl").write_text("{}")
    told = subprocess.run(command, cwd=finished.folder, capture_output=True, text=True)
    assert told.returncode == 1 and "metrics.jsonl: FAILED" in told.stdout
    (finished.folder / rows.SUMS).unlink()
    with pytest.raises(ValueError, match="`run_dir` must hold SHA256SUMS"):
        verify(finished)
