"""Where a dataset's files are: a folder, an archive (unpacked once, see `archives`), or a single file."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qnnkit import checks
from qnnkit.data import archives
from qnnkit.data.archives import ARCHIVES, MAX_BYTES, is_visible, refusal

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LINKS = "links or devices"


@dataclass(frozen=True)
class Member:
    """One file: its path from the root with `/`, its size in bytes, and when it was written, in ns."""

    name: str
    size: int
    stamp: int

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        return self.base.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class Level:
    """What is directly in one folder, in natural order."""

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
    """The files of a folder by name (see `plain`); hidden ones are skipped.

    Attributes:
        path: The folder or archive; of a single file, the folder that it is in.
        members: Every file, however deep, in natural order.
        left_out: Names of links to nowhere or back to a folder above, of links in an archive, of devices.

    Example:
        >>> with open_place(".") as place:
        ...     isinstance(place.level("").folders, list)
        True
    """

    def __init__(self, path: Path, folder: Path, left_out: list[str], only: str = "") -> None:
        self.path, self._folder, self.left_out = path, folder, [*left_out]
        files, self._folders = {}, set()
        for name, status in [(only, (folder / only).stat())] if only else self._walked(str(folder), "", ()):
            if status is None:
                self._folders.add(plain(name))
            else:
                files[name] = Member(plain(name), status.st_size, status.st_mtime_ns)
        self.members = sorted(files.values(), key=lambda each: natural(each.name))
        self._written = {member.name: name for name, member in files.items()}
        if twice := sorted(set(files) - set(self._written.values())):
            step = f"A Mac would take two for one, such as {twice[0]!r}: rename one of them."
            raise refusal("hold names that differ, however accents are written", str(path), step)

    def _walked(
        self, folder: str, above: str, trail: tuple[str, ...]
    ) -> Iterator[tuple[str, os.stat_result | None]]:
        """Name and status of each file, however deep; None for folders."""
        trail = (*trail, os.path.realpath(folder))
        with os.scandir(folder) as entries:
            for entry in filter(lambda each: is_visible(each.name), entries):
                name, status = above + entry.name, None
                with contextlib.suppress(OSError):  # a link to nowhere, or to itself
                    status = entry.stat()
                if status is not None and stat.S_ISREG(status.st_mode):
                    yield name, status
                elif (
                    status is None
                    or not stat.S_ISDIR(status.st_mode)
                    or (entry.is_symlink() and os.path.realpath(entry.path) in trail)
                ):
                    self.left_out.append(name)
                else:
                    yield name, None
                    yield from self._walked(entry.path, f"{name}/", trail)

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
            ValueError: It is larger than 4 GiB; the message is the reason alone.
            OSError: It cannot be read.
        """
        with open(f"{self._folder}/{self._written.get(name, name)}", "rb") as file:  # noqa: PTH123  a Path is slow
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ValueError("larger than 4 GiB")
            return file.read()

    def notes(self, suffixes: tuple[str, ...], what: str) -> list[str]:
        """Sentences on what is here and is not read, if only files of these suffixes are."""
        others = [each.name for each in self.members if not each.base.lower().endswith(suffixes)]
        return left_out({f"files that are no {what} ({', '.join(suffixes)})": others, LINKS: self.left_out})

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


def open_place(path: str | Path, single: tuple[str, ...] = ()) -> Place:
    """The folder or archive at `path`; an archive is unpacked into the cache when it is first opened.

    Args:
        path: On local disk.
        single: Suffixes of files that are places of their own.

    Raises:
        FileNotFoundError: Nothing is there.
        NotADirectoryError: A file is there that is no archive (ValueError if some files are allowed).
        ValueError: The archive is damaged, empty, too large, or a member would land outside of it.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return Place(path, path, [])
    if path.is_file() and path.name.lower().endswith(ARCHIVES):
        return Place(path, *archives.unpacked(path))
    if path.is_file() and path.name.lower().endswith(single):
        return Place(path.parent, path.parent, [], only=path.name)
    if not path.exists():
        step = "Check the path; on Colab, mount Drive first."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", str(path), step))
    rule, step = f"be a folder or end in {', '.join((*ARCHIVES, *single))}", "Choose another one."
    raise (ValueError if single else NotADirectoryError)(checks.message("root", rule, str(path), step))


def unpacked(content: bytes) -> bytes:
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


def left_out(names: dict[str, list[str]]) -> list[str]:
    """Sentences on what is not read, by what it is."""
    return [f"Left out {len(each):,} {what}: {first(each)}." for what, each in names.items() if each]
