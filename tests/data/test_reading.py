"""What people put in place of data: huge, damaged, hostile, deep, replaced. Right, or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qnnkit.data import places
from qnnkit.data.pieces import collect
from qnnkit.data.text import SUFFIXES, documents


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("QNNKIT_HOME", "QNNKIT_LOCAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- refusals: (what to make, how it is read, words of the sentence)


def tar_claiming(size: int) -> Callable[[Path], Path]:
    """A tar whose first header says that a file of so many bytes follows; a sparse file."""

    def make(folder: Path) -> Path:
        info = tarfile.TarInfo("a.txt")
        info.size = size
        path = folder / "claims.tar"
        path.write_bytes(info.tobuf(format=tarfile.GNU_FORMAT))
        os.truncate(path, 512 + size + 1024)
        return path

    return make


def zipped(**contents: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name.replace("__", "."), content)
        return folder / "a.zip"

    return make


def tarred(name: str, *, kind: bytes = tarfile.REGTYPE, n: int = 1) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with tarfile.open(folder / "a.tgz", "w:gz") as archive:
            for i in range(n):
                info = tarfile.TarInfo(f"{name}{i or ''}")
                info.type, info.linkname = kind, "/etc/passwd"
                archive.addfile(info, io.BytesIO())
        return folder / "a.tgz"

    return make


def twice(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive, warnings.catch_warnings(action="ignore"):
        for content in "ab":
            archive.writestr("in/a.txt", content)
    return folder / "a.zip"


def tarred_twice(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("in/a.txt"))
    return folder / "a.tar"


def flipped(folder: Path) -> Path:
    """A zip of two texts, with a bit of the second one flipped."""
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in ("a.txt", "b.txt"):
            archive.writestr(name, f"I am {name}")
    content = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(content.replace(b"I am b", b"I an b"))
    return folder / "a.zip"


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def halved(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def cut(folder: Path) -> Path:
        path = make(folder)
        os.truncate(path, path.stat().st_size // 2)
        return path

    return cut


SIX = 6 * 2**30
STEPS = json.dumps({"a": [[60]] * 400_000}).encode()  # 2.4 MB
REFUSED = {
    "tar, a file of 6 GiB": (tar_claiming(SIX), documents, "but is 'claims.tar with 1 files, 6,442,450,944"),
    "tar, links alone": (tarred("a.txt", kind=tarfile.SYMTYPE), documents, "hold text"),
    "tar, too many files": (tarred("a", n=300), documents, "at most 200 files"),
    "tar, climbing": (tarred("../escaped.txt"), documents, "stay inside it"),
    "tar, climbing later": (tarred("a/../../escaped.txt"), documents, "stay inside it"),
    "tar, absolute": (tarred("/etc/escaped.txt"), documents, "stay inside it"),
    "tar, a name twice": (tarred_twice, documents, "hold each name once, but is 'a.tar: in/a.txt'"),
    "zip, climbing": (zipped(**{"../escaped.txt": b"a"}), documents, "stay inside it"),
    "zip, climbing as on Windows": (zipped(**{"..\\escaped.txt": b"a"}), documents, "stay inside it"),
    "zip, absolute": (zipped(**{"/etc/escaped.txt": b"a"}), documents, "stay inside it"),
    "zip, a name twice": (twice, documents, "hold each name once, but is 'a.zip: in/a.txt'"),
    "zip, damaged": (flipped, documents, "Bad CRC-32 for file 'b.txt'"),
    "zip, a file of more than allowed": (zipped(a__txt=bytes(3_000_000)), documents, "3,000,000 bytes"),
    "zip, all of more than allowed": (
        zipped(**{f"a{i}": bytes(1_900_000) for i in range(20)}), documents, "at most 200 files, 2,000,000"
    ),
    "zip, cut": (file("a.zip", b"PK\x03\x04"), documents, "a whole archive"),
    "tgz, cut in half": (halved(tarred("a.txt", n=99)), documents, "a whole archive"),
    "zip, empty": (zipped(), documents, "hold text"),
    "text of more than allowed": (file("a.txt", b"a" * 2_100_000), documents, "4 GiB"),
    "gzip of more than allowed": (file("a.json.gz", gzip.compress(STEPS)), collect, "larger than 4 GiB"),
    "gzip, cut": (file("a.json.gz", gzip.compress(b'{"a": [[60]]}')[:-9]), collect, "music that can be read"),
    "gzip, none": (file("a.json.gz", b'{"a": [[60]]}'), collect, "music that can be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once_cheaply_and_in_one_sentence(case, cache, monkeypatch):
    make, read, words = REFUSED[case]
    path = make(cache)
    if path.stat().st_size < SIX:
        monkeypatch.setattr(places, "MAX_BYTES", 2_000_000)
        monkeypatch.setattr(places, "MAX_BYTES", 2_000_000)
        monkeypatch.setattr(places, "MAX_ARCHIVE", 32_000_000)
        monkeypatch.setattr(places, "MAX_FILES", 200)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError) as caught:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    told = str(caught.value)
    assert told.startswith("Argument `root` must ") and told.endswith(".") and "\n" not in told, told
    assert words in told, told
    assert time.process_time() - start < 5 and peak < 40_000_000
    assert not [*cache.parent.glob("escaped*"), *cache.rglob("*escaped.txt")]


# --- what lies deep, or is no file


def pages(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"This is {name}. " * 9)
    return folder


DEEP = ("a.txt", "1/b.txt", "1/2/3/4/5/6/7/c.txt", "names with blanks/ü ☃ 'quoted' \"twice\"/d.md")


def test_files_of_every_depth_and_name_are_read(cache):
    folder = pages(cache / "books", *DEEP)
    with tarfile.open(cache / "books.tgz", "w:gz") as archive:
        archive.add(folder, "books")
    for root, above in ((folder, ""), (cache / "books.tgz", "books/")):
        found, notes = documents(root)
        assert sorted(each.name for each in found if each) == sorted(above + name for name in DEEP)
        assert notes == []


def test_no_link_is_followed_but_the_folder_itself_may_be_one(cache):
    folder = pages(cache / "books", "one/a.txt", "three/b.txt")
    pages(cache / "elsewhere", "c.txt")
    (folder / "one" / "back").symlink_to(folder)
    (folder / "other").symlink_to(cache / "elsewhere")
    (folder / "c.txt").symlink_to(folder / "one" / "a.txt")
    (cache / "linked").symlink_to(folder)
    for root in (folder, cache / "linked"):
        found, notes = documents(root)
        assert sorted(each.name for each in found if each) == ["one/a.txt", "three/b.txt"]
        assert notes == ["Left out 3 links, devices or empty folders: c.txt, one/back, other."]


def test_what_is_left_out_is_told_by_number_and_reason(cache):
    folder = pages(cache / "books", "a.txt", "b.md", "cover.pdf", "deep/notes.docx", ".hidden", "c")
    with tarfile.open(cache / "books.tar", "w") as archive:
        archive.add(folder, ".")
        for kind in (tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"odd{kind.decode()}.txt")
            info.type, info.linkname = kind, "a.txt"
            archive.addfile(info)
    read = ", ".join(SUFFIXES)
    suffixes = f"Left out 3 files that are no text ({read}): c, cover.pdf, deep/notes.docx."
    assert documents(folder)[1] == [suffixes]
    odd = "Left out 3 links, devices or empty folders: odd2.txt, odd3.txt, odd6.txt."
    assert documents(cache / "books.tar")[1] == [suffixes, odd]
    for i in range(3):
        (cache / "music" / "ann").mkdir(parents=True, exist_ok=True)
        (cache / "music" / "ann" / f"{i}.json").write_text('{"a": [[60]], "b": [[62]], "c": [[64]]}')
    (cache / "music" / "LICENSE.md").write_text("free")
    (cache / "music" / "ann" / "score.xml").write_text("<score/>")
    (told,) = collect(cache / "music")[1]
    suffixes = ".mid, .midi, .json, .json.gz"
    assert told == f"Left out 2 files that are no music ({suffixes}): LICENSE.md, ann/score.xml."
