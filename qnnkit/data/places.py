"""Where a dataset's files are: a folder, a file, an archive, unpacked once, or an address, copied once.

Every bound on what is read or unpacked is in this file.
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
"""Most bytes of all that an archive holds."""
MAX_FILES = 2**21
"""Most files of an archive."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a damaged archive raises; RuntimeError: one with a password."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ABOUT = ("sample.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files about a dataset, which hold nothing of it, as `sample_files` and `datasets` write them."""
LINKS = "links, devices or empty folders"
OF_HUB = re.compile(r"(\.\./)+blobs/[0-9a-f]+")
"""Where a file of the Hugging Face Hub's cache, which is a link, points to."""
Reasons = dict[str, list[str]]
"""Why something is not read, or what it is -> its names."""


def refusal(rule: str, value: object, next_step: str) -> ValueError:
    """The error that says what is wrong with the data at `root`."""
    return ValueError(checks.message("root", rule, value, next_step))


@dataclass(frozen=True)
class Member:
    """One file: its path from the root with `/`, its size in bytes, and when it last changed."""

    name: str
    size: int
    stamp: object
    """Nanoseconds; of what is in no file, anything that changes with it."""

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        return self.name.lower().endswith(SUFFIXES)


def plain(name: str) -> str:
    """A name in the form in which names are hashed, sorted and compared.

    A Mac writes an accent apart from its letter (NFD), Linux and Colab both as one (NFC).
    """
    return unicodedata.normalize("NFC", name)


class Place:
    """The files of a folder by name (see `plain`); hidden ones and ABOUT are skipped.

    No link is followed but those of the Hugging Face Hub's cache, to `blobs/`, where every file is one.

    Attributes:
        path: The folder or archive; of a single file, the folder that it is in.
        members: Every file, however deep, in natural order.
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
                step = "A Mac would take two for one: rename one of them."
                raise refusal("hold names that differ, however accents are written", name, step)
            self._paths[name] = written
            self.members.append(Member(name, status.st_size, status.st_ctime_ns))
        self.members.sort(key=lambda each: natural(each.name))
        self.left_out.sort()

    def _walked(self, folder: str, above: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Name, path and status of each file, however deep."""
        with os.scandir(folder) as found:
            entries = [x for x in found if not x.name.startswith((".", "__MACOSX")) and x.name not in ABOUT]
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
        """All of one file; of one called .gz what it holds.

        Raises:
            ValueError: It is larger than 4 GiB, or damaged; the message is the reason alone.
            OSError: It cannot be read.
        """
        with open(self._paths[name], "rb") as file:  # noqa: PTH123  a Path is slow
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ValueError("larger than 4 GiB")
            content = file.read()
        return gunzipped(content) if name.lower().endswith(".gz") else content

    def notes(self, suffixes: tuple[str, ...], what: str, why: Reasons | None = None) -> list[str]:
        """Sentences on what is not read: by the reasons in `why`, for its suffix, or as a link.

        A whole name, with a `/` before it, counts as a suffix.
        """
        others = [each.name for each in self.members if not f"/{each.base.lower()}".endswith(suffixes)]
        shown = ", ".join(each for each in suffixes if each.startswith("."))
        return left_out({**(why or {}), f"files that are no {what} ({shown})": others, LINKS: self.left_out})


def open_place(root: str | Path | None, single: tuple[str, ...] = ()) -> Place:
    """The files at `root`; an archive is unpacked into the cache when it is first opened.

    Args:
        root: A folder, an archive, or the address of one.
        single: Suffixes of files that are places of their own.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A file of another kind is there; the archive is damaged, too large, or a member would land
            outside of it.
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
    """Where `root` can be read on local disk.

    What is at a URL (`gs://`, `memory://`, `https://`, ...) is copied once, to a folder in `copies/` of
    `store()`; delete that folder to copy it again. Paths are returned as they are.

    Raises:
        ValueError: Nothing is given.
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
        step = f"It says: {words.first_line(error)}. Check the address, the connection and your rights."
        raise OSError(checks.message("root", "be within reach", url, step)) from None
    return target


def _copy(url: str, path: Path) -> None:
    """Copies the file, or all files of the folder, at an address."""
    if url.lower().startswith("http"):
        return fetch(url, path, None)
    import fsspec

    filesystem, root = fsspec.url_to_fs(url)
    if any(".." in name.split("/") for name in filesystem.find(root)):
        raise ValueError("a name leads out of it")
    filesystem.get(root, str(path), recursive=True)


def fetch(url: str, path: Path, checksum: str | None) -> None:
    """Brings a file over HTTP by pooch: whole and checked, or not at all.

    Args:
        url: Its address.
        path: Where it goes; a file that is there and has the checksum is not fetched again.
        checksum: "md5:..." or "sha256:..." in hex, where it is known.

    Raises:
        OSError, ValueError: It cannot be reached; it is another file.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # the bar shows how far it is
    pooch.retrieve(url, checksum, path.name, path.parent, progressbar=True)


# --- archives, and what is kept of addresses --------------------------------------------------------------


def store() -> Path:
    """The folder of the user's cache for what can be fetched or unpacked again."""
    import platformdirs

    return platformdirs.user_cache_path("qnnkit") / "datasets"


def shelf_of(kind: str, name: str) -> Path:
    """The folder in `store()` of one archive or address."""
    return store() / kind / hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def kept(folder: Path, version: object, make: Callable[[Path], list[str] | None]) -> list[str]:
    """What `make` gave when it filled `folder`: it is called for another `version` (plain values) alone.

    The folder appears whole or not at all, and no other process makes it meanwhile.
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
    """The folder with the files of an archive, and the names of links and devices, which are left out.

    An archive is unpacked again if its size or its time of writing has changed.

    Raises:
        ValueError: The archive is damaged or too large, or holds a name twice, or a member that would land
            outside of the folder.
        OSError: The disk is full or read-only.
    """
    status, folder = path.stat(), shelf_of("unpacked", str(path.resolve()))
    version = [status.st_size, status.st_mtime_ns]
    return folder / "files", kept(folder, version, lambda draft: _unpack(path, draft / "files"))


def _unpack(path: Path, folder: Path) -> list[str]:
    """Writes all files and folders; gives the names of links and devices.

    Neither `zipfile` nor `tarfile` gives more bytes than the size that a member declares. Their own
    `extract` asks the disk more often, and takes half as long again for many small files.
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
                    raise refusal("hold only members that stay inside it", f"{path.name}: {name}", step)
                is_folder = info.is_dir() if is_zip else info.isdir()
                make(f"{folder}/{name}" if is_folder else f"{folder}/{name}".rpartition("/")[0])
                if S_ISLNK(info.external_attr >> 16) if is_zip else not (is_folder or info.isreg()):
                    links.append(name)
                elif not is_folder:
                    source = archive.open(info) if is_zip else archive.extractfile(info)
                    with source, open(f"{folder}/{name}", "xb") as file:  # noqa: PTH123  a Path is slow
                        shutil.copyfileobj(source, file)
    except (FileExistsError, NotADirectoryError) as error:
        step = "Make the archive again, from one folder; on a Mac, capital letters make no other name."
        where = f"{path.name}: {str(error.filename).removeprefix(f'{folder}/')}"
        raise refusal("hold each name once", where, step) from None
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk's
            raise
        step = f"It cannot be read ({words.first_line(error)}): copy or download it again."
        raise refusal("be a whole archive", str(path), step) from None
    return links


def gunzipped(content: bytes) -> bytes:
    """What a gzip file holds.

    Raises:
        ValueError: It is damaged, or holds more than 4 GiB; the message is the reason alone.
    """
    stream = zlib.decompressobj(31)
    try:
        whole = stream.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("larger than 4 GiB unpacked" if stream.unconsumed_tail else "cut short, or of parts")
    return whole


# --- names -------------------------------------------------------------------------------------------------


def around(names: Iterable[str]) -> str:
    """The innermost folder that all of these files lie in, with a `/` at its end; or "".

    Example:
        >>> around(["data/a/0.png", "data/b/0.png"]), around(["a.txt", "b/c.txt"])
        ('data/', '')
    """
    folders = {name.rpartition("/")[0] for name in names}
    common = os.path.commonpath(folders) if folders else ""
    return f"{common}/" if common else ""


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which 2 comes before 10."""
    parts = re.split(r"([0-9]+)", name)  # text at even places, digits at odd ones
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def first(names: list[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def pattern(argument: str, written: str) -> re.Pattern[str]:
    """A regular expression.

    Raises:
        ValueError: It is none; the message names the argument.
    """
    try:
        return re.compile(plain(written))
    except re.error as error:
        step = f"Python says: {error}."
        raise ValueError(checks.message(argument, "be a regular expression", written, step)) from None


def left_out(names: Reasons) -> list[str]:
    """Sentences on what is not read, by what it is."""
    return [f"Left out {len(each):,} {what}: {first(each)}." for what, each in names.items() if each]
