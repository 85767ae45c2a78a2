"""Archives: unpacked once, safely, into a folder on local disk; every bound is in this file.

`tarfile.extractall(filter="data")` bounds neither sizes nor numbers, and took 31 s for 50,000 small files,
which the loop below writes in 3 s.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qnnkit import checks, words, workspace

MAX_BYTES = 4 * 2**30
"""Most bytes of one file, in an archive or not: files are read into memory."""
MAX_ARCHIVE = 4 * MAX_BYTES
"""Most bytes of all that an archive holds."""
MAX_FILES = 2**21
"""Most files of an archive."""
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


def shelf_of(kind: str, name: str) -> Path:
    """The folder in `store()` of one archive or address."""
    return store() / kind / hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def kept(folder: Path, version: object, make: Callable[[Path], list[str] | None]) -> list[str]:
    """What `make` gave when it filled `folder`: it is called for another `version` (plain values) alone.

    The folder appears whole or not at all, and no other process makes it meanwhile.
    """
    from filelock import FileLock

    lock = shelf_of("locks", str(folder.absolute()))  # stays: a lock on a deleted file excludes nobody
    with FileLock(workspace.make_folder(lock.parent) / lock.name):
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
    status, folder = path.stat(), shelf_of("unpacked", str(path.resolve()))
    version = [status.st_size, status.st_mtime_ns]
    return folder / "files", kept(folder, version, lambda draft: _unpack(path, draft / "files"))


def _unpack(path: Path, folder: Path) -> list[str]:
    """Writes all visible files; gives the names of links and devices."""
    make = functools.cache(lambda parent: Path(parent).mkdir(parents=True, exist_ok=True))
    left_out, total, is_empty = [], 0, True
    try:
        for number, (written, size, kind, source) in enumerate(_members(path), start=1):
            total += size
            _require_bounds(path, number, size, total)
            parts = written.replace("\\", "/").split("/")
            if ".." in parts or not parts[0]:
                step = "Nothing was read: make the archive again, from inside the folder."
                raise refusal("hold only members that stay inside it", f"{path.name}: {written}", step)
            name = "/".join(part for part in parts if part not in ("", "."))
            if not is_visible(name):
                continue
            if kind == "link":
                left_out.append(name)
            elif kind == "folder":
                make(f"{folder}/{name}")
            else:
                make(f"{folder}/{name}".rpartition("/")[0])
                with source() as content, open(f"{folder}/{name}", "xb") as file:  # noqa: PTH123  faster
                    shutil.copyfileobj(content, file, 2**20)
                is_empty = False
    except (FileExistsError, NotADirectoryError) as error:
        step = "Make the archive again, from one folder; on a Mac, capital letters make no other name."
        where = f"{path.name}: {Path(str(error.filename)).relative_to(folder)}"
        raise refusal("hold each name once", where, step) from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk's
            raise
        step = f"It cannot be read ({words.first_line(error)}): copy or download it again."
        raise refusal("be a whole archive", str(path), step) from None
    if is_empty:
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
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                kind = "folder" if info.is_dir() else "link" if is_link else "file"
                yield info.filename, info.file_size, kind, functools.partial(archive.open, info)
    else:
        with tarfile.open(path) as archive:
            for info in archive:
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  they take memory
                kind = "folder" if info.isdir() else "file" if info.isreg() else "link"
                yield info.name, info.size, kind, functools.partial(archive.extractfile, info)


def is_visible(name: str) -> bool:
    """Whether no part of a path is one of those that systems and editors hide."""
    return not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _require_bounds(path: Path, n_files: int, size: int, total: int) -> None:
    if n_files > MAX_FILES or size > MAX_BYTES or total > MAX_ARCHIVE:
        most = f"{MAX_FILES:,} files, {MAX_BYTES / 2**30:.0f} GiB each, {MAX_ARCHIVE / 2**30:.0f} GiB in all"
        value = f"{path.name} with {n_files:,} files, {max(size, total):,} bytes"
        raise refusal(f"hold at most {most}", value, "Unpack it and pass the folder.")
