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
from pathlib import Path

import pytest

from qnnkit.data import places
from qnnkit.data.pieces import collect
from qnnkit.data.text import SUFFIXES, documents
from tests.toys import no_workspace, refused


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    no_workspace(monkeypatch, tmp_path)
    return tmp_path


# --- refusals: (name of the file, its bytes, how it is read, words of the sentence)


def zipped(*members: tuple[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members, maybe one of them twice."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive, warnings.catch_warnings(action="ignore"):
        for member in members:
            archive.writestr(*member)
    return file.getvalue()


def tarred(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A gzipped tar of empty members of one kind."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return file.getvalue()


def claims(size: int) -> bytes:
    """The head of a tar which says that a file of so many bytes follows."""
    info = tarfile.TarInfo("a.txt")
    info.size = size
    return info.tobuf(format=tarfile.GNU_FORMAT)


SIX = 6 * 2**30
STEPS = json.dumps({"a": [[60]] * 400_000}).encode()  # 2.4 MB
A, MANY = ("in/a.txt", b"a"), [f"a{i}" for i in range(300)]
HALF = len(tarred(*MANY[:99])) // 2
OUT, ABSOLUTE = ("../escaped.txt", "a/../../escaped.txt"), "/etc/escaped.txt"
STORED = zipped(A, ("b.txt", b"I am b"), kind=zipfile.ZIP_STORED)
BIG = [(name, bytes(1_900_000)) for name in MANY[:20]]
REFUSED = {
    "tar, a file of 6 GiB": ("claims.tar", claims(SIX), documents, "'claims.tar with 1 files, 6,442,450,944"),
    "tar, links alone": ("a.tgz", tarred("a.txt", kind=tarfile.SYMTYPE), documents, "hold text"),
    "tar, too many files": ("a.tgz", tarred(*MANY), documents, "at most 200 files"),
    "tar, climbing": ("a.tgz", tarred(OUT[0]), documents, "stay inside it"),
    "tar, climbing later": ("a.tgz", tarred(OUT[1]), documents, "stay inside it"),
    "tar, absolute": ("a.tgz", tarred(ABSOLUTE), documents, "stay inside it"),
    "tar, a name twice": ("a.tgz", tarred("in/a.txt", "in/a.txt"), documents, "is 'a.tgz: in/a.txt'"),
    "zip, climbing": ("a.zip", zipped((OUT[0], b"a")), documents, "stay inside it"),
    "zip, climbing as on Windows": ("a.zip", zipped(("..\\escaped.txt", b"a")), documents, "stay inside it"),
    "zip, absolute": ("a.zip", zipped((ABSOLUTE, b"a")), documents, "stay inside it"),
    "zip, a name twice": ("a.zip", zipped(A, A), documents, "hold each name once, but is 'a.zip: in/a.txt'"),
    "zip, damaged": ("a.zip", STORED.replace(b"I am", b"I an"), documents, "file 'b.txt'"),
    "zip, a large file": ("a.zip", zipped(("a.txt", bytes(3_000_000))), documents, "3,000,000 bytes"),
    "zip, large in all": ("a.zip", zipped(*BIG), documents, "at most 200 files, 2,000,000"),
    "zip, cut": ("a.zip", b"PK\x03\x04", documents, "a whole archive"),
    "tgz, cut in half": ("a.tgz", tarred(*MANY[:99])[:HALF], documents, "a whole archive"),
    "zip, empty": ("a.zip", zipped(), documents, "hold text"),
    "a large text": ("a.txt", b"a" * 2_100_000, documents, "4 GiB"),
    "a large gzip": ("a.json.gz", gzip.compress(STEPS), collect, "larger than 4 GiB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_once_cheaply_and_in_one_sentence(case, folder, monkeypatch):
    name, content, read, words = REFUSED[case]
    (folder / name).write_bytes(content)
    if name == "claims.tar":
        os.truncate(folder / name, 512 + SIX + 1024)  # sparse
    else:
        for bound, most in {"MAX_BYTES": 2_000_000, "MAX_ARCHIVE": 32_000_000, "MAX_FILES": 200}.items():
            monkeypatch.setattr(places, bound, most)
    tracemalloc.start()
    start = time.process_time()
    try:
        with refused("root") as caught:
            read(folder / name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert time.process_time() - start < 5 and peak < 40_000_000
    assert not [*folder.parent.glob("escaped*"), *folder.rglob("*escaped.txt")]


# --- what lies deep, or is no file


def pages(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"This is {name}. " * 9)
    return folder


DEEP = ("a.txt", "1/b.txt", "1/2/3/4/5/6/7/c.txt", "names with blanks/ü ☃ 'quoted' \"twice\"/d.md")


def test_files_of_every_depth_and_name_are_read_no_link_is_followed_and_others_are_told(folder):
    books = pages(folder / "books", *DEEP, ".hidden", "c", "cover.pdf", "deep/notes.docx")
    pages(folder / "elsewhere", "c.txt")
    for name, target in (("1/back", books), ("other", folder / "elsewhere"), ("c.txt", books / "a.txt")):
        (books / name).symlink_to(target)
    (folder / "linked").symlink_to(books)  # the folder itself may be one
    with tarfile.open(folder / "books.tgz", "w:gz") as opened:
        opened.add(books, "books")
    for root, above in ((books, ""), (folder / "linked", ""), (folder / "books.tgz", "books/")):
        found, notes = documents(root)
        assert sorted(each.name for each in found) == sorted(above + name for name in DEEP)
        others = ", ".join(above + name for name in ("c", "cover.pdf", "deep/notes.docx"))
        links = ", ".join(above + name for name in ("1/back", "c.txt", "other"))
        assert notes == [
            f"Left out 3 files that are no text ({', '.join(SUFFIXES)}): {others}.",
            f"Left out 3 links, devices or empty folders: {links}.",
        ]
