"""Images in files: flat folders, sides, archives, addresses; kept once, and refused where wrong."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from qnnkit import data, recipes, workspace
from qnnkit.data import load, places
from qnnkit.recipes import RecipeError
from qnnkit.runs.folder import Run
from tests.toys import fill, no_workspace, noise, pack, put, real, refused


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    return no_workspace(monkeypatch, tmp_path)


FLAT = [f"{i:04}_{i % 3:02}.png" for i in range(30)]
CLASSES = [f"{name}/{i}.png" for name in "ab" for i in range(10)]
PATTERN = r"label_(\d+)"
SIDED = [f"{side}/{name}/{i}.png" for side in ("train", "test") for name in "ab" for i in range(8)]


# --- where the label stands ---------------------------------------------------------------------------------


def test_the_label_in_the_name(tmp_path):
    root = fill(
        tmp_path / "flat",
        [*FLAT[:20], *(f"deeper/{each}" for each in FLAT[20:]), "nolabel.png", "also_x.png"],
    )
    (root / "readme_11.txt").write_text("about")
    splits = load("flat_folder", root=root)
    assert splits.classes == ("00", "01", "02")
    assert splits.notes == (
        r"Left out 2 of 32 images whose names do not fit label_pattern (\d+)$: also_x.png, nolabel.png.",
        "Left out 1 files that are no images: readme_11.txt.",
    )
    placed = [splits.train, splits.validation, splits.test]
    assert sum(map(len, placed)) == 30  # those in folders below too
    for part in placed:
        for label, source in zip(part.labels.tolist(), part.sources, strict=True):
            assert source.endswith(f"{label:02}.png")
    thirds = {"validation_fraction": 1 / 3, "test_fraction": 1 / 3}
    other = load("flat_folder", root=root, label_pattern=r"^\d{3}(\d)", **thirds)
    assert other.classes == tuple("0123456789")
    assert load("flat_folder", root=root, label_pattern=r"_(\d+)\.png").fingerprint() == splits.fingerprint()


@pytest.mark.parametrize(
    ("numbers", "classes"),
    [
        (("0000_007", "0000_107", "0000_012", "0000_112"), ("007", "012", "107", "112")),
        (("x_7", "x_8"), ("7", "8")),
        (("x_7", "y_07", "z_10"), ("07", "7", "10")),
    ],
)
def test_the_whole_last_number_is_the_class(tmp_path, numbers, classes):
    root = fill(tmp_path / "flat", [f"{i}{number}.png" for number in numbers for i in "abcde"])
    splits = load("flat_folder", root=root)
    assert set(splits.classes) == set(classes) and splits.notes == ()


def test_patterns_that_are_refused(tmp_path):
    root = fill(tmp_path / "flat", FLAT)
    for pattern in (r"\d+", "(", PATTERN):
        with refused("label_pattern"):
            load("flat_folder", root=root, label_pattern=pattern)
    (tmp_path / "void").mkdir()
    camera = fill(
        tmp_path / "camera", [f"IMG_{2000 + i}.png" for i in range(40)]
    )  # merged, they were 100 classes
    for place, pattern in ((root, "^(0)"), (tmp_path / "void", None), (camera, None)):
        with refused("root"):
            load("flat_folder", root=place, label_pattern=pattern)


@pytest.mark.parametrize("name", ["class_folder", "flat_folder"])
def test_train_and_test_are_kept_apart(tmp_path, name):
    flat = [f"{side}/{each}" for side in ("train", "test") for each in FLAT]
    names = SIDED if name == "class_folder" else flat
    root = fill(tmp_path / "sided", names)
    splits = load(name, root=root)
    assert all(source.startswith("test/") for source in splits.test.sources)
    assert not any(source.startswith("test/") for source in splits.train.sources + splits.validation.sources)
    n = len(names) // 2
    assert len(splits.test) == n and len(splits.validation) + len(splits.train) == n
    fill(root, [f"val/{each.partition('/')[2]}" for each in names[:n]], seed=500)
    three = load(name, root=root)
    assert len(three.train) == len(three.validation) == n and three.validation.sources[0].startswith("val/")
    same = load(name, root=pack(root, tmp_path / "sided.zip", above="data/"))
    assert same.fingerprint() == three.fingerprint()


def test_sides_that_do_not_fit(tmp_path):
    root = fill(tmp_path / "x", [*SIDED, "test/c/1.png"])
    with refused("root"):
        load("class_folder", root=root)
    classes = fill(tmp_path / "y", [f"{side}/{i}.png" for side in ("train", "test") for i in range(9)])
    assert load("class_folder", root=classes).classes == ("test", "train")  # classes of these names


def test_duplicates_are_told_with_their_count(tmp_path):
    root = fill(tmp_path / "x", SIDED)
    shutil.copy(root / "train" / "a" / "0.png", root / "test" / "a" / "0.png")
    shutil.copy(root / "train" / "a" / "1.png", root / "test" / "b" / "1.png")
    (note,) = load("class_folder", root=root, train_fraction=0.5).notes
    assert re.match(r"Duplicates: 2 of \d\d images of validation and test.*1 of them under another", note)
    assert "train/a/0.png" in note and "= test/a/0.png (test)" in note


# --- archives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz"])
def test_an_archive_is_read_as_its_folder(tmp_path, store, suffix):
    folder = fill(tmp_path / "images", [*CLASSES, "__MACOSX/a/0.png", "a/.hidden.png"])
    direct = load("class_folder", root=folder)
    for number, above in enumerate(("", "./", "outer/", "outer/inner/")):
        path = pack(folder, tmp_path / f"{number}{suffix}", above)
        assert load("class_folder", root=path).fingerprint() == direct.fingerprint()
        path.unlink()
    assert {each.name for each in tmp_path.iterdir()} <= {"images", "cache"}  # unpacked in the cache alone


def test_an_archive_is_unpacked_once_and_again_when_it_changes(tmp_path, store, monkeypatch):
    folder, path = fill(tmp_path / "images", CLASSES), tmp_path / "all.zip"
    first = load("class_folder", root=pack(folder, path)).fingerprint()
    monkeypatch.setattr(places, "_unpack", None)  # nothing is unpacked again
    assert load("class_folder", root=path).fingerprint() == first
    monkeypatch.undo()
    fill(folder, CLASSES, seed=500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(store.parent.parent))
    assert load("class_folder", root=pack(folder, path)).fingerprint() != first
    assert load("class_folder", root=path).fingerprint() == load("class_folder", root=folder).fingerprint()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_what_a_kill_leaves_is_not_taken_for_whole(tmp_path, store, monkeypatch, suffix):
    folder = fill(tmp_path / "images", CLASSES)
    path = pack(folder, tmp_path / f"all{suffix}")
    child = os.fork()
    if child == 0:  # dies in the middle, before the eighth file
        written, copy = [], shutil.copyfileobj
        shutil.copyfileobj = lambda *given: os._exit(9) if len(written) == 7 else written.append(copy(*given))
        load("class_folder", root=path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len([*store.rglob("*.png")]) in (7, 8)
    splits = load("class_folder", root=path)
    assert splits.fingerprint() == load("class_folder", root=folder).fingerprint()
    assert len([*store.rglob("*.png")]) == 20, "the draft has gone"


# --- what is kept -------------------------------------------------------------------------------------------


def test_images_are_read_once_and_kept_as_one_file(tmp_path, monkeypatch):
    root = fill(tmp_path / "images", CLASSES)
    put(root / "a" / "odd.png", noise(12, 10))
    without = load("class_folder", root=root)
    assert not list(tmp_path.rglob("*.safetensors"))  # a plain script leaves nothing behind
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "home"))
    calls, read = [], places.Place.read
    monkeypatch.setattr(places.Place, "read", lambda self, name: calls.append(name) or read(self, name))

    def kept(**options) -> int:
        """How many files are read; what comes must be the same."""
        calls.clear()
        splits = load("class_folder", root=root, **options)
        if not options:
            assert splits.fingerprint() == without.fingerprint()
            assert splits.notes == without.notes and splits.test.sources == without.test.sources
        return len(calls)

    assert [kept(), kept(), kept(train_fraction=0.3), kept(split_seed=5)] == [21, 0, 0, 0]
    assert [kept(image_size=4), kept(image_size=4)] == [21, 0]
    flat = fill(tmp_path / "flat", FLAT)
    for _ in range(2):  # by their pattern
        assert load("flat_folder", root=flat).n_classes == 3
        assert load("flat_folder", root=flat, label_pattern=r"(\d)\.png").classes == ("0", "1", "2")
    picture = root / "a" / "0.png"
    before, content = picture.stat(), picture.read_bytes()
    picture.write_bytes(content)  # what has the size and the time of before may be another
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [kept(), kept()] == [21, 0]
    kept_files = (tmp_path / "home" / "datasets").glob("*.safetensors")
    newest = max(kept_files, key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:500])
    assert [kept(), kept()] == [21, 0]
    shutil.rmtree(tmp_path / "home" / "datasets")
    (tmp_path / "home" / "datasets").write_text("in the way")
    with pytest.warns(UserWarning, match="Not kept: "):
        assert kept() == 21


# --- addresses and Drive ------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    import fsspec

    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def test_an_address_is_copied_once(tmp_path, memory, store, monkeypatch):
    folder = fill(tmp_path / "images", CLASSES)
    direct = load("class_folder", root=folder)
    for each in folder.rglob("*.png"):
        memory.pipe(f"/bucket/images/{each.relative_to(folder).as_posix()}", each.read_bytes())
    memory.pipe("/bucket/all.zip", pack(folder, tmp_path / "all.zip").read_bytes())
    fetched, get = [], type(memory).get_file
    monkeypatch.setattr(
        type(memory), "get_file", lambda self, *given, **k: fetched.append(given[0]) or get(self, *given, **k)
    )
    for url, n in (("memory://bucket/images", 20), ("memory://bucket/all.zip", 1)):
        for expected in (n, 0):
            fetched.clear()
            assert load("class_folder", root=url).fingerprint() == direct.fingerprint()
            assert len(fetched) == expected
    assert load("class_folder", root=folder.as_uri()).fingerprint() == direct.fingerprint()
    memory.pipe("/bucket/images/a/0.png", put(tmp_path / "new.png", noise(6, 5, seed=77)).read_bytes())
    assert load("class_folder", root="memory://bucket/images").fingerprint() != direct.fingerprint()
    with refused("root", OSError):
        load("class_folder", root="memory://bucket/nowhere")

    def broken(*given, **options):
        raise OSError("no route")

    monkeypatch.setattr(type(memory), "find", broken)
    monkeypatch.setattr(type(memory), "isfile", broken)
    with pytest.warns(UserWarning, match="the copy from before is used"):
        load("class_folder", root="memory://bucket/images")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for url in ("memory://bucket/others", "gs://bucket/images", "nosuch://bucket/images"):
        with refused("root", OSError):
            load("class_folder", root=url)


def test_an_archive_on_drive_is_unpacked_on_local_disk(tmp_path, monkeypatch, store):
    home = tmp_path / "drive"
    home.mkdir()
    folder = fill(tmp_path / "images", CLASSES)
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "local"))
    splits = load("class_folder", root=pack(folder, home / "all.zip"))
    assert len([*store.glob("unpacked/*/files/*/*.png")]) == 20 and not [*home.rglob("*.png")]
    assert splits.fingerprint() == load("class_folder", root=folder).fingerprint()
    monkeypatch.setattr(workspace, "DRIVE", tmp_path / "elsewhere")
    monkeypatch.delenv("QNNKIT_LOCAL")
    assert not workspace.is_remote(home / "all.zip") and workspace.is_remote(tmp_path / "elsewhere" / "x.zip")


# --- through a run ------------------------------------------------------------------------------------------


def splits_of(folder: Path, **values):
    """As a run loads them."""
    return Run(folder / "run", recipes.settings("digits_quanv", **values)).splits


def test_a_run_hands_its_options_on(tmp_path, monkeypatch):
    flat = pack(fill(tmp_path / "flat", FLAT), tmp_path / "flat.zip")
    named = {"dataset": "flat_folder", "data_dir": str(flat), "label_pattern": r"(\d)\.png"}
    splits = splits_of(tmp_path, **named, train_fraction=0.5)
    assert splits.classes == ("0", "1", "2") and len(splits.train) < 15 and len(splits.test) > 2
    for wrong in ({"label_pattern": "(x)"}, {"download": True}):
        with refused(next(iter(wrong))):
            splits_of(tmp_path, **wrong)
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    for place, error in (("nowhere", FileNotFoundError), ("bad.zip", ValueError)):
        with refused("data_dir", error):
            splits_of(tmp_path, dataset="class_folder", data_dir=str(tmp_path / place))
    assert workspace.data_place("flat.zip") == str(tmp_path / "flat.zip")
    monkeypatch.setattr(data, "load", lambda name, **options: options["root"])
    address = "gs://bucket/images"  # what an address holds, only the dataset knows
    with pytest.raises(RecipeError, match="return splits"):
        splits_of(tmp_path, dataset="class_folder", data_dir=address)


@pytest.mark.data
def test_real_pngs_in_a_zip():
    splits = load("flat_folder", root=real("ahcd", "ahcd_test_png.zip"), label_pattern=PATTERN)
    assert splits.classes == tuple(str(label) for label in range(1, 29)) and splits.image_size == (32, 32)
    total = sum(part.labels.bincount() for part in (splits.train, splits.validation, splits.test))
    assert total.tolist() == [120] * 28
    assert not any("Left out" in note for note in splits.notes)
