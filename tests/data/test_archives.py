"""Images in files: flat folders, sides, archives, addresses, samples; kept once, refused where wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qnnkit import cli
from qnnkit.data import load, places, sample_files
from tests.toys import fill, no_workspace, noise, pack, put, refused


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    return no_workspace(monkeypatch, tmp_path)


CLASSES = [f"{name}/{i}.png" for name in "ab" for i in range(10)]


# --- archives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz"])
def test_an_archive_is_read_as_its_folder_once_and_again_when_it_changes(tmp_path, monkeypatch, suffix):
    folder = fill(tmp_path / "images", [*CLASSES, "__MACOSX/a/0.png", "a/.hidden.png"])
    path, direct = tmp_path / f"all{suffix}", load("class_folder", root=folder).fingerprint()
    for above in ("", "./", "outer/inner/"):
        pack(folder, path, above)
        assert load("class_folder", root=path).fingerprint() == direct
    with monkeypatch.context() as patched:
        patched.setattr(places, "_unpack", None)  # nothing is unpacked again
        assert load("class_folder", root=path).fingerprint() == direct
    fill(folder, CLASSES, seed=500)
    assert load("class_folder", root=pack(folder, path)).fingerprint() != direct
    assert {each.name for each in tmp_path.iterdir()} == {"images", "cache", path.name}


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

    def n_read(**options) -> int:
        calls.clear()
        splits = load("class_folder", root=root, **options)
        assert options or (splits.fingerprint(), splits.notes) == (without.fingerprint(), without.notes)
        return len(calls)

    assert [n_read(), n_read(), n_read(split_seed=5), n_read(image_size=4)] == [21, 0, 0, 21]
    picture = root / "a" / "0.png"
    before, content = picture.stat(), picture.read_bytes()
    picture.write_bytes(content)  # what has the size and the time of before may be another
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [n_read(), n_read()] == [21, 0]
    for damaged in (tmp_path / "home" / "datasets").glob("*.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:500])
    assert [n_read(), n_read()] == [21, 0]


# --- addresses and Drive ------------------------------------------------------------------------------------


def test_an_address_is_copied_once(tmp_path, store, monkeypatch):
    import fsspec

    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    folder = fill(tmp_path / "images", CLASSES)
    direct = load("class_folder", root=folder)
    for each in folder.rglob("*.png"):
        memory.pipe(f"/bucket/images/{each.relative_to(folder).as_posix()}", each.read_bytes())
    memory.pipe("/bucket/all.zip", pack(folder, tmp_path / "all.zip").read_bytes())
    urls = ("memory://bucket/images", "memory://bucket/all.zip", folder.as_uri())
    for url in urls:
        assert load("class_folder", root=url).fingerprint() == direct.fingerprint()
    memory.pipe("/climbing/../../escaped.txt", b"out")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for url in ("memory://bucket/nowhere", "memory://climbing", "gs://bucket/images", "nosuch://bucket/x"):
        with refused("root", OSError):
            load("class_folder", root=url)
    assert not [*tmp_path.rglob("escaped*")]
    memory.store.clear()
    shutil.rmtree(folder)
    for url in urls:  # as before, without asking
        assert load("class_folder", root=url).fingerprint() == direct.fingerprint()


# --- qnnkit sample: some files of each class, as they are, whole or not at all -----------------------------

THREE = [f"{name}/{i}.png" for name in ("a", "b", "10") for i in range(12)]
FLAT = [f"{i:04}_{i % 3:02}.png" for i in range(36)]


@pytest.mark.parametrize(("files", "pattern"), [(THREE, None), (FLAT, r"(\d+)$")], ids=["classes", "flat"])
@pytest.mark.parametrize("sides", [("",), ("train/", "test/")])
def test_each_class_of_each_side_is_sampled_alike(tmp_path, files, pattern, sides):
    source = fill(tmp_path / "all", [side + name for side in sides for name in files])

    def sampled(name: str, seed: int = 3, per_class: int = 4) -> set[str]:
        sample_files(source, tmp_path / name, seed=seed, per_class=per_class, pattern=pattern)
        return {path.relative_to(tmp_path / name).as_posix() for path in (tmp_path / name).rglob("*.png")}

    names, there = sampled("some"), tmp_path / "some"
    record = json.loads((there / "sample.json").read_text())
    assert names == {*record["files"]} and len(names) == 12 * len(sides) == 12 * len(record["counts"])
    assert all([*counts.values()] == [4, 4, 4] for counts in record["counts"].values())
    assert all((there / name).read_bytes() == (source / name).read_bytes() for name in names)
    options = {"validation_fraction": 0.3, "test_fraction": 0.3}
    loaded = load("flat_folder" if pattern else "class_folder", root=there, **options)
    assert len(loaded.classes) == 3 and loaded.notes == ()
    assert sampled("again") == names != sampled("other", seed=4) and sampled("fewer", per_class=2) < names


def test_what_is_left_out_or_too_few_is_counted_named_and_told(tmp_path):
    fill(tmp_path / "all", [f"id_{i:02}_label_{i % 12}{'x' * (i % 12 < 10)}.png" for i in range(47)])
    command = r"sample all some --per-class 4 --pattern (\d+)$"
    done = CliRunner().invoke(cli.app, command.split())
    assert done.exit_code == 0 and done.output.startswith("7 images in "), done.output
    assert r"Left out 40 of 47 images whose names do not fit (\d+)$: id_00_label_0x.png, " in done.output
    assert "Classes with fewer files than were asked for: 11 of any (3 of 4)." in done.output


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ("SRC", FileNotFoundError, "no.zip some --per-class 1"),
        ("SRC", ValueError, "taken some --per-class 1"),
        ("DST", FileExistsError, "all taken --per-class 1"),
        ("DST", ValueError, "all there/x --per-class 1"),
        ("DST", ValueError, "all all/../all/x --per-class 1"),
        ("--per-class", ValueError, "all some --per-class 0"),
        ("--pattern", ValueError, "all some --per-class 1 --pattern ("),
    ],
)
def test_the_command_tells_what_was_typed(tmp_path, argument, error, words):
    (tmp_path / "there").symlink_to(fill(tmp_path / "all", THREE))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*.png"))
    with refused(argument, error) as told:
        CliRunner().invoke(cli.app, ["sample", *words.split()], catch_exceptions=False)
    assert not any(name in str(told.value) for name in ("`root`", "`folder`", "`per_class`", "root/<"))
    assert sorted(tmp_path.rglob("*.png")) == before
