"""Files of a dataset: in a folder, a file, an archive (unpacked once) or at an address (copied once).

All limits on what is read or unpacked are in this file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import tarfile
import unicodedata
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK
from typing import Any

from qnnkit import checks, words, workspace

MAX_BYTES = 4 * 2**30
"""Most bytes of one file, in an archive or not: files are read into memory."""
MAX_ARCHIVE = 4 * MAX_BYTES
"""Most bytes of all files of an archive."""
MAX_FILES = 2**21
"""Most files of an archive."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors from reading a damaged archive; RuntimeError for one with a password."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ABOUT = ("sample.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files of metadata, written by `sample_files` and `datasets`; they hold no samples."""
LINKS = "links, devices or empty folders"
OF_HUB = re.compile(r"(\.\./)+blobs/[0-9a-f]+")
"""Targets of the links in the Hugging Face Hub's cache."""
Reasons = dict[str, list[str]]
"""Kind of files that are not read, or the reason -> their names."""


def refusal(rule: str, value: object, next_step: str) -> ValueError:
    """Returns an error about the data at `root`; see `checks.message`."""
    return ValueError(checks.message("root", rule, value, next_step))


@dataclass(frozen=True)
class Member:
    """One file: its path below the root, with `/`, its size in bytes, and a stamp that changes with it."""

    name: str
    size: int
    stamp: object
    """Time of the last change in nanoseconds; anything that changes with the content if it is not a file."""

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        return self.name.lower().endswith(SUFFIXES)


def plain(name: str) -> str:
    """Returns a name in NFC, the form in which names are hashed, sorted, compared and shown.

    macOS stores an accent apart from its letter (NFD), Linux and Colab store both as one character (NFC).
    Bytes of a name that are not UTF-8 are written as `\\udce9`, so that every name can be printed.
    """
    return unicodedata.normalize("NFC", name.encode(errors="backslashreplace").decode())


class Place:
    """The files of a folder by name (see `plain`), without hidden ones and ABOUT.

    Links are not followed, except links to `blobs/`, of which the Hugging Face Hub's cache consists.

    Attributes:
        path: The folder or archive; for a single file, the folder that contains it.
        members: Every file, at any depth, in natural order.
        left_out: Names of links, devices and empty folders.

    Example:
        >>> all(isinstance(member, Member) for member in open_place(".").members)
        True
    """

    def __init__(self, path: Path, folder: Path, left_out: Iterable[str] = (), only: str = "") -> None:
        self.path, self.left_out, self.members = path, [*left_out], []
        self._paths: dict[str, str] = {}
        single = [(only, f"{folder}/{only}", (folder / only).stat())] if only else ()
        for name, written, status in single or self._walked(str(folder), ""):
            if name in self._paths:
                step = "On a Mac they are the same file: rename one of them."
                raise refusal("hold names that differ by more than the encoding of accents", name, step)
            self._paths[name] = written
            self.members.append(Member(name, status.st_size, status.st_ctime_ns))
        self.members.sort(key=lambda each: natural(each.name))
        self.left_out.sort()

    def _walked(self, folder: str, above: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Yields name, path and status of each file, at any depth."""
        with os.scandir(folder) as scan:
            entries = [x for x in scan if not x.name.startswith((".", "__MACOSX")) and x.name not in ABOUT]
        if above and not entries:
            self.left_out.append(above)
        for entry in entries:
            name = plain(above + entry.name)
            of_hub = entry.is_symlink() and OF_HUB.fullmatch(str(Path(entry.path).readlink()))
            if entry.is_file(follow_symlinks=bool(of_hub)):
                yield name, entry.path, entry.stat()
            elif entry.is_dir(follow_symlinks=False):
                yield from self._walked(entry.path, f"{name}/")
            else:
                self.left_out.append(name)

    def read(self, name: str) -> bytes:
        """Returns the content of a file, decompressed if its name ends in .gz.

        Raises:
            ValueError: It is larger than 4 GiB, or damaged; the message is only the reason.
            OSError: It cannot be read.
        """
        with open(self._paths[name], "rb") as file:  # noqa: PTH123  Path.open is slower
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ValueError("larger than 4 GiB")
            content = file.read()
        return gunzipped(content) if name.lower().endswith(".gz") else content

    def notes(self, suffixes: tuple[str, ...], what: str, why: Reasons | None = None) -> list[str]:
        """Returns notes on what is not read: for the reasons in `why`, for its suffix, or as a link.

        A suffix may be a whole file name with a leading `/`.
        """
        unread = [each.name for each in self.members if not f"/{each.base.lower()}".endswith(suffixes)]
        shown = ", ".join(each for each in suffixes if each.startswith("."))
        return left_out({**(why or {}), f"files that are not {what} ({shown})": unread, LINKS: self.left_out})


def open_place(root: str | Path | None, single: tuple[str, ...] = ()) -> Place:
    """Returns the files at `root`; an archive is unpacked into the cache when first opened.

    Args:
        root: A folder, an archive, or the address of one.
        single: Suffixes of files that may be given on their own.

    Raises:
        FileNotFoundError: Nothing is at `root`.
        ValueError: `root` is a file of another kind; or the archive is damaged, too large, or has a member
            that would be unpacked outside of its folder.
    """
    path = local(root)
    name = path.name.lower()
    if path.is_dir():
        return Place(path, path)
    if path.is_file() and name.endswith(ARCHIVES):
        return Place(path, *unpacked(path))
    if path.is_file() and name.endswith(single):
        return Place(path.parent, path.parent, only=path.name)
    if path.exists():
        rule = f"be a folder or end in {', '.join((*ARCHIVES, *single))}"
        raise refusal(rule, str(path), "Choose another one.")
    step = "Check the path; on Colab, mount Drive first."
    raise FileNotFoundError(checks.message("root", "be an existing folder or file", str(path), step))


def local(root: str | Path | None) -> Path:
    """Returns the path of `root` on local disk.

    The files at a URL (`gs://`, `memory://`, `https://`, ...) are copied once, to a folder in `copies/` of
    `store()`; delete that folder to copy them again. Local paths are returned without a copy.

    Raises:
        ValueError: `root` is empty.
        OSError: The URL cannot be reached, or nothing is there.
    """
    if not root:
        raise refusal("say where the data are", root, "Pass the path of the folder, archive or file.")
    url = str(root)
    if "://" not in url:
        return Path(root).expanduser()
    folder = shelf_of("copies", url)
    target = folder / (Path(urllib.parse.urlsplit(url).path).name or "files")
    try:
        kept(folder, url, lambda draft: _copy(url, draft / target.name))
    except Exception as error:  # each filesystem has errors of its own
        step = f"Error: {words.first_line(error)}. Check the address, the connection and your rights."
        raise OSError(checks.message("root", "be reachable", url, step)) from None
    return target


def _copy(url: str, path: Path) -> None:
    """Copies the file at an address, or all files of the folder there."""
    if url.lower().startswith("http"):
        return fetch(url, path, None)
    import fsspec

    filesystem, root = fsspec.url_to_fs(url)
    if any(".." in name.split("/") for name in filesystem.find(root)):
        raise ValueError("a file name leads out of the folder")
    filesystem.get(root, str(path), recursive=True)


def fetch(url: str, path: Path, checksum: str | None) -> None:
    """Downloads a file over HTTP with pooch: complete and checked, or not at all.

    Args:
        url: Address of the file.
        path: Destination; a file that exists there and has the checksum is not downloaded again.
        checksum: "md5:..." or "sha256:..." in hex; None skips the check.

    Raises:
        OSError, ValueError: The address cannot be reached, or the checksum differs.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # the progress bar is enough
    pooch.retrieve(url, checksum, path.name, path.parent, progressbar=True)


# --- archives, and copies of addresses ---------------------------------------------------------------------


def store() -> Path:
    """Returns the folder of the user's cache for what can be downloaded or unpacked again."""
    import platformdirs

    return platformdirs.user_cache_path("qnnkit") / "datasets"


def shelf_of(kind: str, name: str) -> Path:
    """Returns the folder in `store()` of one archive or address."""
    return store() / kind / hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def kept(folder: Path, version: object, make: Callable[[Path], list[str] | None]) -> list[str]:
    """Returns what `make` returned when it filled `folder`; `make` runs again only if `version` changes.

    `version` has plain values. The folder is written completely or not at all, by one process at a time.
    """
    from filelock import FileLock

    with FileLock(workspace.make_folder(folder.parent) / f"{folder.name}.lock"):
        record = workspace.read_json(folder / "record.json") or {}
        if record.get("version") != version:
            with workspace.whole_folder(folder) as draft:
                record = {"version": version, "left_out": make(draft) or []}
                workspace.write_json(draft / "record.json", record)
    return record["left_out"]


def unpacked(path: Path) -> tuple[Path, list[str]]:
    """Returns the folder with the files of an archive, and the names of links and devices, which are omitted.

    An archive is unpacked again if its size or modification time has changed.

    Raises:
        ValueError: The archive is damaged or too large, or holds a name twice, or a member that would land
            outside of the folder.
        OSError: The disk is full or read-only.
    """
    status, folder = path.stat(), shelf_of("unpacked", str(path.resolve()))
    version = [status.st_size, status.st_mtime_ns]
    return folder / "files", kept(folder, version, lambda draft: _unpack(path, draft / "files"))


def _unpack(path: Path, folder: Path) -> list[str]:
    """Writes all files and folders; returns the names of links and devices.

    Neither `zipfile` nor `tarfile` returns more bytes than the size that a member declares. Their own
    `extract` accesses the disk more often, and takes half as long again for many small files.
    """
    make = functools.cache(lambda parent: Path(parent).mkdir(parents=True, exist_ok=True))
    links, total, is_zip = [], 0, path.name.lower().endswith(".zip")
    try:
        opened: Any = (zipfile.ZipFile if is_zip else tarfile.open)(path)
        with opened as archive:
            make(str(folder))
            for number, info in enumerate(archive.infolist() if is_zip else archive, start=1):
                name, size = (info.filename, info.file_size) if is_zip else (info.name, info.size)
                name, total = name.replace("\\", "/"), total + size
                if number > MAX_FILES or size > MAX_BYTES or total > MAX_ARCHIVE:
                    most = f"{MAX_FILES:,} files, {MAX_BYTES:,} bytes each, {MAX_ARCHIVE:,} in all"
                    value = f"{path.name} with {number:,} files, {max(size, total):,} bytes"
                    raise refusal(f"hold at most {most}", value, "Unpack it and pass the folder.")
                if name.startswith("/") or ".." in name.split("/"):
                    step = "Nothing was read: make the archive again, from inside the folder."
                    raise refusal("hold only members inside its folder", f"{path.name}: {name}", step)
                is_folder = info.is_dir() if is_zip else info.isdir()
                make(f"{folder}/{name}" if is_folder else f"{folder}/{name}".rpartition("/")[0])
                if S_ISLNK(info.external_attr >> 16) if is_zip else not (is_folder or info.isreg()):
                    links.append(name)
                elif not is_folder:
                    source = archive.open(info) if is_zip else archive.extractfile(info)
                    with source, open(f"{folder}/{name}", "xb") as file:  # noqa: PTH123  Path.open is slower
                        shutil.copyfileobj(source, file)
    except (FileExistsError, NotADirectoryError) as error:
        step = "Make the archive again, from one folder; on a Mac, names may not differ in case alone."
        where = f"{path.name}: {str(error.filename).removeprefix(f'{folder}/')}"
        raise refusal("hold each name once", where, step) from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk's
            raise
        step = f"It cannot be read ({words.first_line(error)}): copy or download it again."
        raise refusal("be a complete archive", str(path), step) from None
    return links


def gunzipped(content: bytes) -> bytes:
    """Returns the decompressed content of a gzip file.

    Raises:
        ValueError: It is damaged, or its content is larger than 4 GiB; the message is only the reason.
    """
    stream = zlib.decompressobj(31)
    try:
        data = stream.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("larger than 4 GiB unpacked" if stream.unconsumed_tail else "truncated, or in parts")
    return data


# --- names -------------------------------------------------------------------------------------------------


def around(names: Iterable[str]) -> str:
    """Returns the innermost folder that contains all of these files, ending in `/`; or "".

    Example:
        >>> around(["data/a/0.png", "data/b/0.png"]), around(["a.txt", "b/c.txt"])
        ('data/', '')
    """
    folders = {name.rpartition("/")[0] for name in names}
    common = os.path.commonpath(folders) if folders else ""
    return f"{common}/" if common else ""


def natural(name: str) -> tuple[list[str | int], str]:
    """Sort key of natural order, in which 2 comes before 10."""
    parts = re.split(r"([0-9]+)", name)  # text at even places, digits at odd ones
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def first(names: list[str], most: int = 5) -> str:
    """Returns the first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def pattern(argument: str, written: str) -> re.Pattern[str]:
    """Compiles a regular expression.

    Raises:
        ValueError: It is invalid; the message names the argument.
    """
    try:
        return re.compile(plain(written))
    except re.error as error:
        step = f"Python says: {error}."
        raise ValueError(checks.message(argument, "be a regular expression", written, step)) from None


def left_out(names: Reasons) -> list[str]:
    """Returns a note for each kind of files that are not read."""
    notes = []
    for what, each in names.items():
        is_single = len(each) == 1 and not what.startswith("of ")  # "1 of 20 images", but not "1 files"
        n = "" if is_single else f"{len(each):,} "
        notes += [f"Left out {n}{what}: {first(each)}."] * bool(each)
    return notes
