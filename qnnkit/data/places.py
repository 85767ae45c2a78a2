"""Where a dataset's files lie: a folder, or an archive that is read without unpacking it.

Archives are read by Python's own `zipfile` and `tarfile`, not through fsspec's `zip://` and `tar://`: those
hand on names that climb out, put no bound on what the header of a tar claims, and unpack a `.tar.gz` anew for
each file that is read in another order than it has there (987 of 2,000 files in a minute; here all in 0.8 s).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from qnnkit import checks, words

MAX_BYTES = 4 * 2**30
"""More than this is not held in memory: neither a file, nor a tar."""
MAX_FILES = 2**21
"""Of an archive; its names alone then take a gigabyte."""
MAX_HEADER = 2**17
"""Bytes of a name or of a record about a member of a tar; Python reads them into memory."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a damaged archive raises; RuntimeError of one with a password."""


@dataclass(frozen=True)
class Member:
    """One file: its path from the root with `/`, its size in bytes, and what changes when it is written."""

    name: str
    size: int
    stamp: int  # time of writing in ns; in an archive the CRC-32 of what it holds

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        return self.base.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class Level:
    """What lies directly in one folder, in natural order."""

    folders: list[str]
    files: list[Member]

    @property
    def images(self) -> list[Member]:
        return [member for member in self.files if member.is_image]


_form: ContextVar[Literal["NFC", "NFD"] | None] = ContextVar("form", default="NFC")


@contextlib.contextmanager
def names_in(form: Literal["NFD"] | None) -> Iterator[None]:
    """Names of files count in another form of Unicode inside, or as they are written: so they did once."""
    token = _form.set(form)
    try:
        yield
    finally:
        _form.reset(token)


def plain(name: str) -> str:
    """A name in the form in which names are hashed, sorted and compared.

    A Mac writes an accent apart from its letter (NFD), Linux and Colab both as one (NFC).
    """
    form = _form.get()
    return name if form is None else unicodedata.normalize(form, name)


class Place:
    """The files of a folder or an archive, by name (see `plain`); hidden ones are passed over.

    Attributes:
        path: The folder or archive; of a single file, the folder it lies in.
        members: Every file, however deep, in natural order.
        left_out: Names of what is no file: devices, and links in an archive or back to a folder above.

    Example:
        >>> with open_place(".") as place:
        ...     isinstance(place.level("").folders, list)
        True
    """

    def __init__(self, path: Path, single: tuple[str, ...] = ()) -> None:
        self.left_out: list[str] = []
        with contextlib.ExitStack() as stack:
            self.path, (names, self._read) = _opened(path, single, stack, self.left_out)
            self._close = stack.pop_all().close
        self._written = {plain(name): name for name in names}
        if twice := sorted(set(names) - set(self._written.values())):
            step = f"A Mac would take two for one, such as {twice[0]!r}: rename one of them."
            raise refusal("hold names that differ, however accents are written", str(path), step)
        names = {name: _named(names[written], name) for name, written in self._written.items()}
        self.members = sorted((each for each in names.values() if each), key=lambda each: natural(each.name))
        self._folders = {name for name, member in names.items() if member is None}
        for name in names:
            while (name := name.rpartition("/")[0]) and name not in self._folders:
                self._folders.add(name)

    def level(self, name: str) -> Level:
        above = f"{name}/" if name else ""
        inside = [each[len(above) :] for each in self._folders if each.startswith(above)]
        return Level(
            sorted((each for each in inside if each and "/" not in each), key=natural),
            [each for each in self.members if each.name == above + each.base],
        )

    def read(self, name: str) -> bytes:
        """All of one file.

        Raises:
            ValueError: It is damaged, larger than 4 GiB, or no regular file; the message is the reason alone.
            OSError: It cannot be read.
        """
        return self._read(self._written.get(name, name))

    def notes(self, suffixes: tuple[str, ...], what: str) -> list[str]:
        """Sentences on what lies here and is not read, where only files of these suffixes are."""
        others = [each.name for each in self.members if not each.base.lower().endswith(suffixes)]
        return left_out({f"files that are no {what} ({', '.join(suffixes)})": others, LINKS: self.left_out})

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def open_place(path: str | Path, single: tuple[str, ...] = ()) -> Place:
    """The folder or archive at `path`.

    Args:
        path: On local disk.
        single: What a file may end in that is a place of its own.

    Raises:
        FileNotFoundError: Nothing is there.
        NotADirectoryError: A file is there that is no archive (ValueError where some files will do).
        ValueError: The archive is damaged, empty, too large, or a member would land outside of it.
    """
    return Place(Path(path).expanduser(), single)


Names = dict[str, Member | None]
"""Path from the root -> the file, or None for a folder."""
Opened = tuple[Names, Callable[[str], bytes]]
"""What there is, and how a file of it is read."""


def _opened(
    path: Path, single: tuple[str, ...], stack: contextlib.ExitStack, left_out: list[str]
) -> tuple[Path, Opened]:
    if path.is_dir():
        return path, (dict(_walked(path, "", (), left_out)), lambda name: _content(path / name))
    if path.is_file() and path.name.lower().endswith(ARCHIVES):
        return path, _archive(path, stack, left_out)
    if path.is_file() and path.name.lower().endswith(single):
        return path.parent, ({path.name: _member(path.name, path)}, lambda name: _content(path))
    if not path.exists():
        step = "Check the path; on Colab, mount Drive first."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", str(path), step))
    rule, step = f"be a folder or end in {', '.join((*ARCHIVES, *single))}", "Choose another one."
    raise (ValueError if single else NotADirectoryError)(checks.message("root", rule, str(path), step))


def _walked(
    folder: Path, above: str, trail: tuple[Path, ...], left_out: list[str]
) -> Iterator[tuple[str, Member | None]]:
    trail = (*trail, folder.resolve())
    for each in folder.iterdir():
        if not _is_visible(each.name):
            continue
        if not each.is_dir():
            yield above + each.name, _member(above + each.name, each)
        elif each.is_symlink() and each.resolve() in trail:
            left_out.append(above + each.name)
        else:
            yield above + each.name, None
            yield from _walked(each, f"{above}{each.name}/", trail, left_out)


def _archive(path: Path, stack: contextlib.ExitStack, left_out: list[str]) -> Opened:
    try:
        names, read = (_zip if path.name.lower().endswith(".zip") else _tar)(path, stack, left_out)
    except (*DAMAGE, OSError) as error:
        reason = words.first_line(error)
        step = f"It cannot be read ({reason}): copy or download it anew."
        raise refusal("be a whole archive", str(path), step) from None
    if not any(names.values()):
        raise refusal("hold files", str(path), "The archive is empty: make it anew.")
    return names, read


def _zip(path: Path, stack: contextlib.ExitStack, left_out: list[str]) -> Opened:
    archive = stack.enter_context(zipfile.ZipFile(path))
    infos = {_inside(path, info.filename): info for info in archive.infolist()}
    infos = {name: info for name, info in infos.items() if _is_visible(name)}
    sizes = [info.file_size for info in infos.values()]
    _bound(path, len(sizes), max(sizes, default=0), MAX_BYTES)
    _bound(path, len(sizes), sum(sizes), 16 * MAX_BYTES)

    def read(name: str) -> bytes:
        try:
            return archive.read(infos[name])  # never more than the size it declares
        except DAMAGE as error:
            raise ValueError(str(error) or "cut short") from None

    return {
        name.rstrip("/"): None if name.endswith("/") else Member(name, info.file_size, info.CRC)
        for name, info in infos.items()
    }, read


class _Header(tarfile.TarInfo):
    """Refuses a long name, or a record about a member, before memory is taken for what it claims."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in b"LKxgX" and self.size > MAX_HEADER:
            value = f"{Path(str(tar.name)).name} with one of {self.size:,} bytes"
            raise refusal("hold names of 128 KiB at most", value, "Nothing was read: make the archive anew.")
        return super()._proc_member(tar)  # pyright: ignore[reportAttributeAccessIssue]


def _tar(path: Path, stack: contextlib.ExitStack, left_out: list[str]) -> Opened:
    """Read from front to back once, into memory."""
    contents: dict[str, bytes] = {}
    names: Names = {}
    total = 0
    with tarfile.open(path, tarinfo=_Header) as archive:
        for number, info in enumerate(archive):
            archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
            name, total = _inside(path, info.name), total + info.size
            _bound(path, number, total, MAX_BYTES)
            if not _is_visible(name) or info.isdir():
                continue
            file = archive.extractfile(info) if info.isreg() else None
            if file is None:
                left_out.append(name)
                continue
            contents[name] = file.read()
            names[name] = Member(name, info.size, zlib.crc32(contents[name]))
    return names, contents.__getitem__


def unpacked(content: bytes) -> bytes:
    """What a gzip file holds.

    Raises:
        ValueError: It is damaged, or holds more than 4 GiB; the message is the reason alone.
    """
    parts, left = [], MAX_BYTES
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while part := file.read(2**20):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise ValueError("larger than 4 GiB unpacked")
    except (EOFError, zlib.error, OSError) as error:
        raise ValueError(str(error) or "cut short") from None
    return b"".join(parts)


def refusal(rule: str, value: object, next_step: str) -> ValueError:
    """The error that says what is wrong with the data at `root`."""
    return ValueError(checks.message("root", rule, value, next_step))


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


LINKS = "links or devices"


def left_out(names: dict[str, list[str]]) -> list[str]:
    """Sentences on what is not read, by what it is."""
    return [f"Left out {len(each):,} {what}: {first(each)}." for what, each in names.items() if each]


def _named(member: Member | None, name: str) -> Member | None:
    return member if member is None or member.name == name else replace(member, name=name)


def _member(name: str, path: Path) -> Member:
    try:
        status = path.stat()
    except OSError:  # a link to itself; reported when it is read
        status = path.lstat()
    return Member(name, status.st_size, status.st_mtime_ns)


def _content(path: Path) -> bytes:
    if not path.is_file():  # a pipe would wait for ever
        raise ValueError("not a regular file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("larger than 4 GiB")
    return path.read_bytes()


def _is_visible(name: str) -> bool:
    """Whether no part of a path is one of those that systems and editors hide."""
    return not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _inside(path: Path, name: str) -> str:
    """A member's name with `/`, if it stays inside the folder that the archive would be unpacked in."""
    clean = name.replace("\\", "/")
    while clean.startswith("./"):
        clean = clean[2:]
    if clean.startswith("/") or re.match(r"[A-Za-z]:", clean) or ".." in PurePosixPath(clean).parts:
        step = "Nothing was read: make the archive anew, from inside the folder."
        raise refusal("hold only members that stay inside it", f"{path.name}: {name}", step)
    return clean


def _bound(path: Path, n_files: int, size: int, most: int) -> None:
    if n_files > MAX_FILES or size > most:
        rule = f"hold {MAX_FILES:,} files and {most / 2**30:.0f} GiB at most"
        value = f"{path.name} with {n_files:,} files, {size:,} bytes"
        raise refusal(rule, value, "Unpack it and pass the folder.")
