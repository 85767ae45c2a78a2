"""Files in folders, archives and at addresses: caching, sampling, and errors for hostile or damaged ones."""

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qnnkit import cli
from qnnkit.data import load, places, sample_files
from qnnkit.data.pieces import collect
from qnnkit.data.text import SUFFIXES, documents
from tests.same import raises
from tests.toys import fill, no_workspace, noise, pack, put, refused, write


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    return no_workspace(monkeypatch, tmp_path)


CLASSES = [f"{name}/{i}.png" for name in "ab" for i in range(10)]


# --- archives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz"])
def test_an_archive_reads_like_its_folder_and_is_unpacked_only_on_changes(tmp_path, monkeypatch, suffix):
    folder = fill(tmp_path / "images", [*CLASSES, "__MACOSX/a/0.png", "a/.hidden.png"])
    path, direct = tmp_path / f"all{suffix}", load("class_folder", root=folder).fingerprint()
    for above in ("", "./", "outer/inner/"):
        pack(folder, path, above)
        assert load("class_folder", root=path).fingerprint() == direct
    with monkeypatch.context() as patched:
        patched.setattr(places, "_unpack", None)  # not unpacked again
        assert load("class_folder", root=path).fingerprint() == direct
    fill(folder, CLASSES, seed=500)
    assert load("class_folder", root=pack(folder, path)).fingerprint() != direct
    assert {each.name for each in tmp_path.iterdir()} == {"images", "cache", path.name}


def test_a_killed_unpacking_is_not_taken_for_complete(tmp_path, store):
    folder = fill(tmp_path / "images", CLASSES)
    path = pack(folder, tmp_path / "all.zip")
    child = os.fork()
    if child == 0:  # stops before the eighth file
        written, copy = [], shutil.copyfileobj
        shutil.copyfileobj = lambda *args: os._exit(9) if len(written) == 7 else written.append(copy(*args))
        load("class_folder", root=path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len([*store.rglob("*.png")]) in (7, 8)
    splits = load("class_folder", root=path)
    assert splits.fingerprint() == load("class_folder", root=folder).fingerprint()
    assert len([*store.rglob("*.png")]) == 20, "the draft is deleted"


# --- the cache ----------------------------------------------------------------------------------------------


def test_images_are_read_once_and_cached_in_one_file(tmp_path, monkeypatch):
    root = fill(tmp_path / "images", CLASSES)
    put(root / "a" / "odd.png", noise(12, 10))
    without = load("class_folder", root=root)
    assert not list(tmp_path.rglob("*.safetensors"))  # a plain script leaves no file behind
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
    picture.write_bytes(content)  # a file of equal size and time may differ
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [n_read(), n_read()] == [21, 0]
    for damaged in (tmp_path / "home" / "datasets").glob("*.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:500])
    assert [n_read(), n_read()] == [21, 0]
    monkeypatch.setattr(places.Place, "read", raises(OSError(5, "Input/output error")))  # it may pass
    with pytest.raises(OSError, match="Input/output error"):
        load("class_folder", root=root, image_size=5)
    with pytest.raises(OSError, match="Input/output error"):
        collect(fill(tmp_path / "music", ["a.mid"]))


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


# --- qnnkit sample: some files of each class, copied unchanged, completely or not at all -------------------

THREE = [f"{name}/{i}.png" for name in ("a", "b", "10") for i in range(12)]
FLAT = [f"{i:04}_{i % 3:02}.png" for i in range(36)]


@pytest.mark.parametrize(("files", "pattern"), [(THREE, None), (FLAT, r"(\d+)$")], ids=["classes", "flat"])
@pytest.mark.parametrize("sides", [("",), ("train/", "test/")])
def test_each_class_of_each_split_is_sampled_equally(tmp_path, files, pattern, sides):
    source = fill(tmp_path / "all", [side + name for side in sides for name in files])

    def sampled(name: str, seed: int = 3, per_class: int = 4) -> set[str]:
        sample_files(source, tmp_path / name, seed=seed, per_class=per_class, pattern=pattern)
        return {path.relative_to(tmp_path / name).as_posix() for path in (tmp_path / name).rglob("*.png")}

    names, there = sampled("some"), tmp_path / "some"
    record = json.loads((there / "sample.json").read_text())
    assert names == {*record["files"]} and len(names) == 12 * len(sides) == 12 * len(record["counts"])
    assert all([*counts.values()] == [4, 4, 4] for counts in record["counts"].values())
    assert all((there / name).read_bytes() == (source / name).read_bytes() for name in names)
    assert sampled("again") == names != sampled("other", seed=4) and sampled("fewer", per_class=2) < names


def test_skipped_files_and_small_classes_are_counted_and_named(tmp_path):
    fill(tmp_path / "all", [f"id_{i:02}_label_{i % 12}{'x' * (i % 12 < 10)}.png" for i in range(47)])
    command = r"sample all some --per-class 4 --seed 3 --pattern (\d+)$"
    done = CliRunner().invoke(cli.app, command.split())
    assert done.exit_code == 0 and done.output.startswith("7 images in "), done.output
    assert r"Left out 40 of 47 images whose names do not match (\d+)$: id_00_label_0x.png, " in done.output
    assert "Classes with fewer files than per_class: 11 of any (3 of 4)." in done.output
    assert json.loads((tmp_path / "some" / "sample.json").read_text())["seed"] == 3


TYPED = [
    ("SRC", "no.zip some --per-class 1"),
    ("DST", "all taken --per-class 1"),
    ("DST", "all there/x --per-class 1"),
    ("--per-class", "all some --per-class 0"),
    ("--pattern", "all some --per-class 1 --pattern ("),
]


@pytest.mark.parametrize(("argument", "words"), TYPED)
def test_the_command_quotes_what_was_typed(tmp_path, argument, words):
    (tmp_path / "there").symlink_to(fill(tmp_path / "all", THREE))
    fill(tmp_path / "taken", ["a/mine.png"])
    before = sorted(tmp_path.rglob("*.png"))
    with refused(argument, (ValueError, OSError)):
        CliRunner().invoke(cli.app, ["sample", *words.split()], catch_exceptions=False)
    assert sorted(tmp_path.rglob("*.png")) == before


# --- errors: (name of the file, its bytes, how it is read, words of the message)


def zipped(*members: tuple[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members, optionally one of them twice."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive, warnings.catch_warnings(action="ignore"):
        for member in members:
            archive.writestr(*member)
    return file.getvalue()


def tarred(*names: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    """A gzipped tar of empty members of one kind, each of which claims `size` bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "/etc/passwd", size
            file_in: Any = archive.fileobj  # Python 3.13 adds no member with a size but no content
            file_in.write(info.tobuf())
    return file.getvalue()


STEPS = json.dumps({"a": [[60]] * 400_000}).encode()  # 2.4 MB
A, MANY = ("in/a.txt", b"a"), [f"a{i}" for i in range(300)]
HALF = len(tarred(*MANY[:99])) // 2
STORED = zipped(A, ("b.txt", b"I am b"), kind=zipfile.ZIP_STORED)
BIG = [(name, bytes(1_900_000)) for name in MANY[:20]]
REFUSED = {
    "tar, a large file": ("a.tgz", tarred("a.txt", size=6 * 2**30), documents, "1 files, 6,442,450,944"),
    "tar, links alone": ("a.tgz", tarred("a.txt", kind=tarfile.SYMTYPE), documents, "hold text"),
    "tar, too many files": ("a.tgz", tarred(*MANY), documents, "at most 200 files"),
    "tar, climbing": ("a.tgz", tarred("a/../../escaped.txt"), documents, "only members"),
    "zip, climbing as on Windows": ("a.zip", zipped(("..\\escaped.txt", b"a")), documents, "only members"),
    "zip, absolute": ("a.zip", zipped(("/etc/escaped.txt", b"a")), documents, "only members"),
    "zip, a name twice": ("a.zip", zipped(A, A), documents, "hold each name once, but is 'a.zip: in/a.txt'"),
    "zip, damaged": ("a.zip", STORED.replace(b"I am", b"I an"), documents, "file 'b.txt'"),
    "zip, a large file": ("a.zip", zipped(("a.txt", bytes(3_000_000))), documents, "3,000,000 bytes"),
    "zip, large in all": ("a.zip", zipped(*BIG), documents, "at most 200 files, 2,000,000"),
    "tgz, cut in half": ("a.tgz", tarred(*MANY[:99])[:HALF], documents, "complete archive"),
    "a large text": ("a.txt", b"a" * 2_100_000, documents, "4 GiB"),
    "a large gzip": ("a.json.gz", gzip.compress(STEPS), collect, "larger than 4 GiB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_archive_raises_an_error_of_one_sentence(case, tmp_path, monkeypatch):
    name, content, read, words = REFUSED[case]
    for bound, most in {"MAX_BYTES": 2_000_000, "MAX_ARCHIVE": 32_000_000, "MAX_FILES": 200}.items():
        monkeypatch.setattr(places, bound, most)
    with refused("root", says=words):
        read(write(tmp_path, {name: content}) / name)
    assert not [*tmp_path.parent.glob("escaped*"), *tmp_path.rglob("*escaped.txt")]


# --- deep folders, links and other things that are no files


DEEP = ("a.txt", "1/b.txt", "1/2/3/4/5/6/7/c.txt", "names with blanks/ü ☃ 'quoted' \"twice\"/d.md")


def test_files_at_any_depth_are_read_links_are_skipped_and_reported(tmp_path):
    books = fill(tmp_path / "books", [*DEEP, ".hidden", "c", "cover.pdf", "deep/notes.docx"])
    fill(tmp_path / "elsewhere", ["c.txt"])
    for name, target in (("1/back", books), ("other", tmp_path / "elsewhere"), ("c.txt", books / "a.txt")):
        (books / name).symlink_to(target)
    os.mkfifo(books / "pipe.txt")
    (tmp_path / "linked").symlink_to(books)  # the folder itself may be a link
    with tarfile.open(tmp_path / "books.tgz", "w:gz") as opened:
        opened.add(books, "books")
    for root, above in ((books, ""), (tmp_path / "linked", ""), (tmp_path / "books.tgz", "books/")):
        texts, notes = documents(root)
        assert sorted(each.name for each in texts) == sorted(above + name for name in DEEP)
        others = ", ".join(above + name for name in ("c", "cover.pdf", "deep/notes.docx"))
        links = ", ".join(above + name for name in ("1/back", "c.txt", "other", "pipe.txt"))
        assert notes == [
            f"Left out 3 files that are not text ({', '.join(SUFFIXES)}): {others}.",
            f"Left out 4 links, devices or empty folders: {links}.",
        ]
    snapshot = fill(fill(tmp_path, ["blobs/1f"]) / "snapshots", ["a.txt"])  # as in the Hub's cache
    (snapshot / "b.txt").symlink_to("../blobs/1f")
    (snapshot / "c.txt").symlink_to(tmp_path / "blobs" / "1f")  # by an explicit path
    assert [each.name for each in documents(snapshot)[0]] == ["a.txt", "b.txt"]
