"""qnnkit.report.verify: every kind of damage to a finished run is found, and named."""

import hashlib
import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from qnnkit import report, runs, workspace
from qnnkit.report.verify import hashes, verify
from qnnkit.runs import sums


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A run on a folder of images, finished by the real report, with every kind of file in its folder."""
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            pixels = generator.integers(0, 256, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    settings = {"data_dir": str(tmp_path / "pictures"), "image_size": 6, "controls": ["classical"]}
    run = runs.open_run(tmp_path / "run", "folder_quanv", n_seeds=1, **settings)
    run.note_provenance(data=run.splits.fingerprint())
    for net in run.nets:
        row = {"event": "test", "net": net, "seed": 0, "test_accuracy": 0.5, "seconds_per_epoch": 0.1}
        run.log("metrics", row | {"quantum": 24, "classical": 100, "frozen": 0})
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
    result |= {"config_digest": run.config.digest()}
    sums.write(run.folder, hashes(run.folder))
    workspace.write_json(run.folder / "result.json", result)
    return runs.open_run(run.folder)


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


def test_the_hashes_are_of_the_files_that_stay(finished):
    found = hashes(finished.folder)
    names = [name.relative_to(finished.folder).as_posix() for name in finished.folder.rglob("checkpoint-*")]
    assert sorted(found) == sorted(
        [
            *names,
            "config.json",
            "metrics.jsonl",
            "notebooks/03_train.ipynb",
            "provenance.json",
            "recipe.py",
            "report.html",
        ]
    )
    for name, digest in found.items():
        assert digest == hashlib.sha256((finished.folder / name).read_bytes()).hexdigest()


def test_an_untouched_run_is_as_it_was(finished):
    found = verify(finished)
    assert all(each.ok for each in found)
    assert {each.name: each.sentence for each in found} == {
        "hashes": "8 of 8 files are byte for byte what they were when the run finished.",
        "checkpoints": "2 checkpoints are what their names say.",
        "settings": "The settings in config.json are those that the run finished with.",
        "data": "The data are, pixel by pixel and split by split, those that the run was trained on.",
    }


def test_what_comes_later_is_no_damage(finished):
    """A notebook that is run again, the copy of 04 that papermill writes last."""
    later = ("benchmark.jsonl", "machine.json", "figures/benchmark_step.png")
    later += ("notebooks/04_analyze.ipynb",)
    (finished.folder / "figures").mkdir(exist_ok=True)
    for name in (*later, "batch.log", ".lock"):
        (finished.folder / name).write_text("something else")
    (finished.folder / "notebooks" / "03_train.running.ipynb").write_text("{}")
    assert all(each.ok for each in verify(finished))


def test_a_folder_that_was_moved_is_as_it_was(finished, tmp_path):
    moved = shutil.move(finished.folder, tmp_path / "elsewhere")
    assert all(each.ok for each in verify(runs.open_run(moved)))


# --- damage ------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_checkpoint(finished):
    path = checkpoint(finished)
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    found = verify(finished)
    name = path.relative_to(finished.folder).as_posix()
    wrong = [each.sentence for each in found if each.ok is False]
    assert [each.name for each in found if each.ok is False] == [name, name]
    assert any(told.startswith(f"{name} has changed since the run finished. Restore") for told in wrong)
    assert any(told.startswith(f"Checkpoint {name} is not what its name says") for told in wrong)
    assert "7 of 8 files are byte for byte" in next(each.sentence for each in found if each.name == "hashes")


def test_a_changed_number(finished):
    path = finished.folder / "metrics.jsonl"
    path.write_text(path.read_text().replace("0.5", "0.9"))
    wrong, _ = troubles(finished)
    assert (
        list(wrong) == ["metrics.jsonl"] and "has changed since the run finished." in wrong["metrics.jsonl"]
    )


def test_a_missing_and_a_new_file(finished):
    checkpoint(finished).unlink()
    (finished.folder / "figures").mkdir()
    (finished.folder / "figures" / "made_up.png").write_bytes(b"")
    wrong, _ = troubles(finished)
    assert len(wrong) == 2
    assert wrong["figures/made_up.png"].startswith("figures/made_up.png is new: it was not there")
    assert any(told.endswith("or run the experiment again in a new run_dir.") for told in wrong.values())
    assert any("is missing. Restore" in told for told in wrong.values())


def test_a_checkpoint_under_anothers_name(finished):
    one, other = checkpoint(finished), checkpoint(finished, "classical")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    sums.write(finished.folder, sums.read(finished.folder) | hashes(finished.folder))
    wrong, _ = troubles(finished)
    assert len(wrong) == 2 and all("is not what its name says" in told for told in wrong.values())


def test_other_settings(finished):
    path = finished.folder / "config.json"
    content = json.loads(path.read_text())
    content["epochs"] += 1
    path.write_text(json.dumps(content))
    wrong, _ = troubles(runs.open_run(finished.folder))
    assert set(wrong) == {"config.json", "settings"}
    assert wrong["settings"].startswith(
        "The settings in config.json are not those that the run finished with."
    )


def test_other_data(finished, tmp_path):
    first = tmp_path / "pictures" / "a" / "0.png"
    with Image.open(first) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(first)
    wrong, _ = troubles(finished)
    assert list(wrong) == ["data"] and "The data are not those that the run was trained on" in wrong["data"]


def test_a_damaged_provenance(finished):
    (finished.folder / "provenance.json").write_text("{")
    wrong, _ = troubles(finished)
    assert set(wrong) == {"provenance.json", "data"}
    assert "provenance.json cannot be read, nor the data checked" in wrong["data"]


@pytest.mark.parametrize("content", ["{", "[]", "3", "null"])
def test_a_damaged_result(finished, content):
    (finished.folder / "result.json").write_text(content)
    if content == "null":
        with pytest.raises(ValueError, match="must be finished to be verified"):
            verify(finished)
        return
    [found] = verify(finished)
    assert (found.name, found.ok) == (
        "result.json",
        False,
    ) and "Restore the folder from a copy" in found.sentence


# --- what cannot be checked --------------------------------------------------------------------------------


def test_data_that_are_not_on_this_machine(finished, tmp_path):
    (tmp_path / "pictures").rename(tmp_path / "gone")
    wrong, unknown = troubles(runs.open_run(finished.folder))
    assert wrong == {} and list(unknown) == ["data"]
    assert unknown["data"] == f"The data were not checked: {tmp_path / 'pictures'} is not on this machine."


def test_a_run_without_hashes_says_so(finished):
    path = finished.folder / "result.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in content.items() if k != "config_digest"}))
    (finished.folder / sums.FILE).unlink()
    found = {each.name: each for each in verify(finished)}
    assert found["hashes"].ok is None and "There is no SHA256SUMS" in found["hashes"].sentence
    assert found["settings"].ok is None and "finished before qnnkit kept one" in found["settings"].sentence
    assert found["checkpoints"].ok and found["data"].ok, "these can be checked all the same"


def test_an_unfinished_run_is_refused(finished):
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
