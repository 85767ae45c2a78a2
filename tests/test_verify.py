"""qnnkit.report.verify: every kind of damage to a finished run is found, and named."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qnnkit import report, runs, workspace
from qnnkit.report.verify import hashes, verify
from qnnkit.runs import sums
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
    for name in ("03_train.ipynb", "03_train.failed.ipynb", "04_analyze.running.ipynb", "04_analyze.ipynb"):
        workspace.make_folder(run.folder / "notebooks").joinpath(name).write_text("{}")
    for name in ("train.log", ".hidden", ".sync/piece"):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text("{}")
    result = report.finish(run)
    for net in run.nets:  # in words: nothing can be read of them, which `finish` would
        checkpoints = workspace.make_folder(run.checkpoints(net, 0))
        content = f"the weights of {net}".encode()
        digest = hashlib.sha256(content).hexdigest()[:16]
        (checkpoints / f"checkpoint-000012-{digest}.safetensors").write_bytes(content)
    result |= {"config_digest": run.asked.digest()}
    sums.write(run.folder, hashes(run.folder))
    workspace.write_json(run.folder / "result.json", result)


def troubles(run):
    """Name -> sentence of what is wrong; those that could not be checked apart."""
    found = verify(run)
    assert [each.ok for each in found] == sorted(
        (each.ok for each in found), key=[False, None, True].index
    ), "troubles first"
    wrong = {each.name: each.sentence for each in found if each.ok is False}
    unknown = {each.name: each.sentence for each in found if each.ok is None and each.name != "hashes"}
    return wrong, unknown


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
    found = verify(finished)
    assert all(each.ok for each in found) and {each.name for each in found} == {"hashes", "settings", "data"}
    assert found[0].sentence.startswith("8 of 8 files are byte for byte")


def test_what_comes_later_is_no_damage_nor_is_a_move(finished, tmp_path):
    """A notebook that is run again, the copy of 04 that papermill writes last."""
    later = ("benchmark.jsonl", "machine.json", "figures/benchmark_step.png")
    later += ("notebooks/04_analyze.ipynb",)
    (finished.folder / "figures").mkdir(exist_ok=True)
    for name in (*later, "batch.log", ".lock"):
        (finished.folder / name).write_text("something else")
    (finished.folder / "notebooks" / "03_train.running.ipynb").write_text("{}")
    assert all(each.ok for each in verify(finished))
    moved = shutil.move(finished.folder, tmp_path / "elsewhere")
    assert all(each.ok for each in verify(runs.open_run(moved)))


# --- damage ------------------------------------------------------------------------------------------------


def rewritten(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new))


def other_pixel(run):
    path = next(Path(run.config.data_dir).rglob("0.png"))
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(path)


CHANGED = "has changed since the run finished. Restore the folder from a copy"
DAMAGES = {
    "a flipped bit": (lambda run: rewritten(checkpoint(run), b"weights", b"x"), {"checkpoint": CHANGED}),
    "a changed number": (
        lambda run: rewritten(run.folder / "metrics.jsonl", b"0.5", b"0.9"), {"metrics.jsonl": CHANGED}
    ),
    "a missing file": (lambda run: checkpoint(run).unlink(), {"checkpoint": "is missing. Restore"}),
    "a new file": (lambda run: (run.folder / "made_up.png").touch(), {"made_up.png": "is new: it"}),
    "other settings": (
        lambda run: edit(run.folder / "config.json", epochs=run.config.epochs + 1),
        {"config.json": CHANGED, "settings": "not those that the run finished with."},
    ),
    "other data": (other_pixel, {"data": "The data are not those that the run was trained on"}),
    "a damaged provenance": (
        lambda run: (run.folder / "provenance.json").write_text("{"),
        {"provenance.json": CHANGED, "data": "provenance.json cannot be read, nor the data checked"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named(finished, name):
    damage, expected = DAMAGES[name]
    damage(finished)
    wrong, _ = troubles(runs.open_run(finished.folder) if name == "other settings" else finished)
    found = {("checkpoint" if "checkpoint-" in each else each): told for each, told in wrong.items()}
    assert found.keys() == expected.keys() and all(told in found[each] for each, told in expected.items())


@pytest.mark.parametrize("content", ["{", "[]", "3", "null"])
def test_a_damaged_result(finished, content):
    (finished.folder / "result.json").write_text(content)
    if content == "null":
        with pytest.raises(ValueError, match="must be finished to be verified"):
            verify(finished)
        return
    [found] = verify(finished)
    assert (found.name, found.ok) == ("result.json", False)
    assert "Restore the folder from a copy" in found.sentence


# --- what cannot be checked --------------------------------------------------------------------------------


def test_data_that_are_not_on_this_machine(finished, tmp_path):
    (tmp_path / "pictures").rename(tmp_path / "gone")
    wrong, unknown = troubles(runs.open_run(finished.folder))
    assert wrong == {} and list(unknown) == ["data"]
    assert unknown["data"] == f"The data were not checked: {tmp_path / 'pictures'} is not on this machine."


def test_a_run_without_hashes_says_so_and_an_unfinished_one_is_refused(finished):
    (finished.folder / sums.FILE).unlink()
    found = {each.name: each for each in verify(finished)}
    assert found["hashes"].ok is None and "There is no SHA256SUMS" in found["hashes"].sentence
    assert found["settings"].ok and found["data"].ok, "these can be checked all the same"
    (finished.folder / "result.json").unlink()
    with pytest.raises(ValueError, match=r"has no result\.json\. Finish it: qnnkit run --run-dir"):
        verify(finished)


def test_the_sums_are_read_by_the_systems_own_tool(finished):
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("no sha256sum here")
    command = [tool, "--check", "--quiet", sums.FILE]
    assert subprocess.run(command, cwd=finished.folder, capture_output=True).returncode == 0
    (finished.folder / "metrics.jsonl").write_text("{}")
    told = subprocess.run(command, cwd=finished.folder, capture_output=True, text=True)
    assert told.returncode == 1 and "metrics.jsonl: FAILED" in told.stdout
