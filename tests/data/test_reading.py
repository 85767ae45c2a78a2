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


Member = tuple[str, bytes]


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


def zipped(*members: Member, flips: tuple[bytes, bytes] = (b"", b"")) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        kind, ignoring = zipfile.ZIP_STORED if flips[0] else zipfile.ZIP_DEFLATED, warnings.catch_warnings
        with zipfile.ZipFile(folder / "a.zip", "w", kind) as archive, ignoring(action="ignore"):
            for name, content in members:  # maybe a name twice
                archive.writestr(name, content)
        (folder / "a.zip").write_bytes((folder / "a.zip").read_bytes().replace(*flips))
        return folder / "a.zip"

    return make


def tarred(*names: str, kind: bytes = tarfile.REGTYPE, share: float = 1.0) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "a.tgz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "/etc/passwd"
                archive.addfile(info, io.BytesIO())
        os.truncate(path, int(share * path.stat().st_size))
        return path

    return make


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


SIX = 6 * 2**30
STEPS = json.dumps({"a": [[60]] * 400_000}).encode()  # 2.4 MB
A, MANY = ("in/a.txt", b"a"), [f"a{i}" for i in range(300)]
OUT, ABSOLUTE = ("../escaped.txt", "a/../../escaped.txt"), "/etc/escaped.txt"
REFUSED = {
    "tar, a file of 6 GiB": (tar_claiming(SIX), documents, "but is 'claims.tar with 1 files, 6,442,450,944"),
    "tar, links alone": (tarred("a.txt", kind=tarfile.SYMTYPE), documents, "hold text"),
    "tar, too many files": (tarred(*MANY), documents, "at most 200 files"),
    "tar, climbing": (tarred(OUT[0]), documents, "stay inside it"),
    "tar, climbing later": (tarred(OUT[1]), documents, "stay inside it"),
    "tar, absolute": (tarred(ABSOLUTE), documents, "stay inside it"),
    "tar, a name twice": (tarred("in/a.txt", "in/a.txt"), documents, "is 'a.tgz: in/a.txt'"),
    "zip, climbing": (zipped((OUT[0], b"a")), documents, "stay inside it"),
    "zip, climbing as on Windows": (zipped(("..\\escaped.txt", b"a")), documents, "stay inside it"),
    "zip, absolute": (zipped((ABSOLUTE, b"a")), documents, "stay inside it"),
    "zip, a name twice": (zipped(A, A), documents, "hold each name once, but is 'a.zip: in/a.txt'"),
    "zip, damaged": (zipped(A, ("b.txt", b"I am b"), flips=(b"I am", b"I an")), documents, "file 'b.txt'"),
    "zip, a file of more than allowed": (zipped(("a.txt", bytes(3_000_000))), documents, "3,000,000 bytes"),
    "zip, all of more than allowed": (
        zipped(*((name, bytes(1_900_000)) for name in MANY[:20])), documents, "at most 200 files, 2,000,000"
    ),
    "zip, cut": (file("a.zip", b"PK\x03\x04"), documents, "a whole archive"),
    "tgz, cut in half": (tarred(*MANY[:99], share=0.5), documents, "a whole archive"),
    "zip, empty": (zipped(), documents, "hold text"),
    "text of more than allowed": (file("a.txt", b"a" * 2_100_000), documents, "4 GiB"),
    "gzip of more than allowed": (file("a.json.gz", gzip.compress(STEPS)), collect, "larger than 4 GiB"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once_cheaply_and_in_one_sentence(case, cache, monkeypatch):
    make, read, words = REFUSED[case]
    path = make(cache)
    if path.stat().st_size < SIX:
        for name, most in {"MAX_BYTES": 2_000_000, "MAX_ARCHIVE": 32_000_000, "MAX_FILES": 200}.items():
            monkeypatch.setattr(places, name, most)
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


def test_files_of_every_depth_and_name_are_read_and_no_link_is_followed(cache):
    folder = pages(cache / "books", *DEEP)
    pages(cache / "elsewhere", "c.txt")
    for archive, above in (("", ""), ("books.tgz", "books/")):
        if archive:
            with tarfile.open(cache / archive, "w:gz") as opened:
                opened.add(folder, "books")
        found, notes = documents(cache / archive if archive else folder)
        assert sorted(each.name for each in found) == sorted(above + name for name in DEEP) and notes == []
    for name, target in (("1/back", folder), ("other", cache / "elsewhere"), ("c.txt", folder / "a.txt")):
        (folder / name).symlink_to(target)
    (cache / "linked").symlink_to(folder)  # the folder itself may be one
    for root in (folder, cache / "linked"):
        found, notes = documents(root)
        assert sorted(each.name for each in found) == sorted(DEEP)
        assert notes == ["Left out 3 links, devices or empty folders: 1/back, c.txt, other."]


def test_what_is_left_out_is_told_by_number_and_reason(cache):
    folder = pages(cache / "books", "a.txt", "b.md", "cover.pdf", "deep/notes.docx", ".hidden", "c")
    with tarfile.open(cache / "books.tar", "w") as archive:
        archive.add(folder, ".")
        for kind in (tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"odd{kind.decode()}.txt")
            info.type, info.linkname = kind, "a.txt"
            archive.addfile(info)
    suffixes = f"Left out 3 files that are no text ({', '.join(SUFFIXES)}): c, cover.pdf, deep/notes.docx."
    assert documents(folder)[1] == [suffixes]
    odd = "Left out 3 links, devices or empty folders: odd2.txt, odd3.txt, odd6.txt."
    assert documents(cache / "books.tar")[1] == [suffixes, odd]
    (pages(cache / "music", "LICENSE.md", "ann/score.xml") / "ann.json").write_text('{"a": [[60]]}')
    told = "Left out 2 files that are no music (.mid, .midi, .json, .json.gz): LICENSE.md, ann/score.xml."
    assert collect(cache / "music")[1] == [told]
