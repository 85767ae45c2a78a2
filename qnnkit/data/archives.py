"""Archives: unpacked once, safely, into a folder on local disk; every bound is in this file.

`tarfile.extractall(filter="data")` bounds neither sizes nor numbers, and took 31 s for 50,000 small files,
which the loop below writes in 3 s.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from qnnkit import checks, words, workspace

MAX_BYTES = 4 * 2**30
"""Most bytes of one file, in an archive or not: files are read into memory."""
MAX_ARCHIVE = 4 * MAX_BYTES
"""Most bytes of all that an archive holds."""
MAX_FILES = 2**21
"""Most files of an archive."""
MAX_HEADER = 2**17
"""Most bytes of a name in a tar, or of a record about a member: Python reads them into memory."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a damaged archive raises; RuntimeError: one with a password."""


def refusal(rule: str, value: object, next_step: str) -> ValueError:
    """The error that says what is wrong with the data at `root`."""
    return ValueError(checks.message("root", rule, value, next_step))


def store() -> Path:
    """The folder on local disk for what can be fetched or unpacked again.

    `datasets/` of the workspace; `~/.cache/qnnkit/datasets` without a workspace, or if it is on Drive.
    """
    shelf = workspace.shelf("datasets")
    if shelf is not None and not workspace.is_remote(shelf):
        return shelf
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "qnnkit" / "datasets"


def kept(folder: Path, version: object, make: Callable[[Path], list[str] | None]) -> list[str]:
    """What `make` gave when it filled `folder`: it is called for another `version` (plain values) alone.

    The folder appears whole or not at all, and no other process makes it meanwhile.
    """
    from filelock import FileLock

    locks = workspace.make_folder(store() / "locks")  # files stay: a lock on a deleted file excludes nobody
    with FileLock(locks / hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]):
        record = workspace.read_json(folder / "record.json") or {}
        if record.get("version") != version:
            with workspace.whole_folder(folder) as draft:
                record = {"version": version, "left_out": make(draft) or []}
                workspace.write_json(draft / "record.json", record)
    return record["left_out"]


def unpacked(path: Path) -> tuple[Path, list[str]]:
    """The folder with the files of an archive, and the names of links and devices, which are left out.

    An archive is unpacked again if its size or its time of writing has changed. The folder appears whole or
    not at all, and hidden files are not unpacked.

    Raises:
        ValueError: The archive is damaged, empty or too large, or holds a name twice, or a member that would
            land outside of the folder.
        OSError: The disk is full or read-only.
    """
    status, name = path.stat(), os.fsencode(path.resolve())
    folder = store() / "unpacked" / hashlib.sha256(name).hexdigest()[:16]
    version = [status.st_size, status.st_mtime_ns]
    return folder / "files", kept(folder, version, lambda draft: _unpack(path, draft / "files"))


def _unpack(path: Path, folder: Path) -> list[str]:
    """Writes all visible files; gives the names of links and devices."""
    left_out, total, n_files, parents = [], 0, 0, set()
    try:
        for number, (name, size, kind, source) in enumerate(_members(path), start=1):
            total += size
            _require_bounds(path, number, size, total)
            inside = _inside(path, name)
            if not is_visible(inside):
                continue
            if kind == "link":
                left_out.append(inside)
                continue
            parent = inside if kind == "folder" else inside.rpartition("/")[0]
            if parent not in parents:
                (folder / parent).mkdir(parents=True, exist_ok=True)
                parents.add(parent)
            if kind == "file":
                n_files += 1
                with source() as content, open(f"{folder}/{inside}", "xb") as file:  # noqa: PTH123  faster
                    shutil.copyfileobj(content, file, 2**20)
    except (FileExistsError, NotADirectoryError) as error:
        step = "Make the archive again, from one folder; on a Mac, capital letters make no other name."
        where = f"{path.name}: {Path(str(error.filename)).relative_to(folder)}"
        raise refusal("hold each name once", where, step) from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk's
            raise
        step = f"It cannot be read ({words.first_line(error)}): copy or download it again."
        raise refusal("be a whole archive", str(path), step) from None
    if not n_files:
        raise refusal("hold files", str(path), "The archive is empty: make it again.")
    return left_out


def _members(path: Path) -> Iterator[tuple[str, int, str, Callable[[], Any]]]:
    """Name, size, kind ("file", "folder", or "link": devices, too), and what opens a file.

    Neither `zipfile` nor `tarfile` gives more bytes than the size that a member declares.
    """
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            _require_bounds(path, len(infos), 0, sum(info.file_size for info in infos))
            for info in infos:
                kind = "link" if stat.S_ISLNK(info.external_attr >> 16) else "file"
                kind = "folder" if info.is_dir() else kind
                yield info.filename, info.file_size, kind, partial(archive.open, info)
    else:
        with tarfile.open(path, tarinfo=_Header) as archive:
            for info in archive:
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  they take memory
                kind = "folder" if info.isdir() else "file" if info.isreg() else "link"
                yield info.name, info.size, kind, partial(archive.extractfile, info)


class _Header(tarfile.TarInfo):
    """Refuses a long name, or a record about a member, before memory is taken for what it claims."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in b"LKxgX" and self.size > MAX_HEADER:
            value = f"{Path(str(tar.name)).name} with one of {self.size:,} bytes"
            raise refusal("hold names of 128 KiB at most", value, "Nothing was read: make the archive again.")
        return super()._proc_member(tar)  # pyright: ignore[reportAttributeAccessIssue]


def is_visible(name: str) -> bool:
    """Whether no part of a path is one of those that systems and editors hide."""
    return not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _inside(path: Path, name: str) -> str:
    """A member's path with `/`, if it stays inside the folder that the archive is unpacked in."""
    clean = name.replace("\\", "/")
    parts = PurePosixPath(clean).parts
    if ".." in parts or re.match(r"/|[A-Za-z]:", clean):
        step = "Nothing was read: make the archive again, from inside the folder."
        raise refusal("hold only members that stay inside it", f"{path.name}: {name}", step)
    return "/".join(parts)


def _require_bounds(path: Path, n_files: int, size: int, total: int) -> None:
    if n_files > MAX_FILES or size > MAX_BYTES or total > MAX_ARCHIVE:
        gib = 2**30
        rule = f"hold {MAX_FILES:,} files, {MAX_BYTES / gib:.0f} GiB each, {MAX_ARCHIVE / gib:.0f} GiB in all"
        value = f"{path.name} with {n_files:,} files, {max(size, total):,} bytes"
        raise refusal(f"{rule}, at most", value, "Unpack it and pass the folder.")
