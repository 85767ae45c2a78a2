"""Where a dataset's files lie: a folder, or an archive that is read without unpacking it."""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from qnnkit import checks

MAX_BYTES = 4 * 2**30
"""More than this is not held in memory, nor read from an archive."""
DEPTH = 4
"""Folders looked into: one around everything, a side (train or test), a class, its files."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class Member:
    """One file: its path from the root with `/`, its size in bytes, and what changes when it is written."""

    name: str
    size: int
    stamp: int  # time of writing in ns; in a zip the CRC-32 of what it holds

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        return self.base.lower().endswith(SUFFIXES)


@dataclass
class Level:
    """What lies directly in one folder, in natural order."""

    folders: list[str] = field(default_factory=list)
    files: list[Member] = field(default_factory=list)

    @property
    def images(self) -> list[Member]:
        return [member for member in self.files if member.is_image]


class Place:
    """The files of a folder or an archive, by name; hidden ones are passed over.

    Example:
        >>> with open_place(".") as place:
        ...     isinstance(place.level("").folders, list)
        True
    """

    def __init__(self, path: Path, members: list[Member], folders: list[str]) -> None:
        self.path = path
        self.members = sorted(members, key=lambda member: natural(member.name))
        self.levels = {"": Level()}
        for name in folders:
            self._folder(name.rstrip("/"))
        for member in self.members:
            self._folder(member.name.rpartition("/")[0]).files.append(member)
        for level in self.levels.values():
            level.folders.sort(key=natural)

    def _folder(self, name: str) -> Level:
        """The level of a folder, entered into the one above it when it is new."""
        if name not in self.levels:
            above, _, base = name.rpartition("/")
            self._folder(above).folders.append(base)
            self.levels[name] = Level()
        return self.levels[name]

    def level(self, name: str) -> Level:
        return self.levels[name]

    def read(self, name: str) -> bytes:
        """All of one file."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of the archive."""

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Folder(Place):
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        found: list[Member] = []
        folders: list[str] = []
        for name, each in _walk(path, DEPTH):
            if each.is_dir():
                folders.append(name)
                continue
            try:
                status = each.stat()
            except OSError:  # a link to itself; told when it is read
                status = each.lstat()
            found.append(Member(name, status.st_size, status.st_mtime_ns))
        super().__init__(path, found, folders)

    def read(self, name: str) -> bytes:
        path = self.path / name
        if not path.is_file():  # a pipe would wait for ever
            raise ValueError("not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("larger than 4 GiB")
        return path.read_bytes()


class Zip(Place):
    """A zip archive, read member by member; nothing is written to disk."""

    def __init__(self, path: Path) -> None:
        try:
            self.archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
            raise _damaged(path, error) from None
        try:
            infos = {_inside(path, info.filename): info for info in self.archive.infolist()}
            self.infos = {name: info for name, info in infos.items() if _is_visible(name)}
            _bound(path, sum(info.file_size for info in self.infos.values()))
            files = {name: info for name, info in self.infos.items() if not name.endswith("/")}
            members = [Member(name, info.file_size, info.CRC) for name, info in files.items()]
            super().__init__(path, members, [name for name in self.infos if name.endswith("/")])
            _require_files(self)
        except BaseException:
            self.archive.close()
            raise

    def read(self, name: str) -> bytes:
        try:
            return self.archive.read(self.infos[name])  # never more than the size it declares
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
            raise ValueError(str(error) or "cut short") from None

    def close(self) -> None:
        self.archive.close()


class Tar(Place):
    """A tar archive, gzipped or not: read from front to back once, into memory."""

    def __init__(self, path: Path) -> None:
        self.contents: dict[str, bytes] = {}
        members, total = [], 0
        try:
            with tarfile.open(path) as archive:
                for info in archive:
                    name = _inside(path, info.name)
                    total += info.size
                    _bound(path, total)
                    file = archive.extractfile(info) if info.isreg() and _is_visible(name) else None
                    if file is not None:  # links, devices and pipes are passed over
                        self.contents[name] = file.read()
                        members.append(Member(name, info.size, zlib.crc32(self.contents[name])))
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise _damaged(path, error) from None
        super().__init__(path, members, [])
        _require_files(self)

    def read(self, name: str) -> bytes:
        return self.contents[name]


def open_place(path: str | Path) -> Place:
    """The folder or archive at `path`.

    Raises:
        FileNotFoundError: Nothing is there.
        NotADirectoryError: A file is there that is no archive.
        ValueError: The archive is damaged, empty, too large, or a member would land outside of it.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.name.lower().endswith(".zip"):
            return Zip(path)
        if path.name.lower().endswith(ARCHIVES):
            return Tar(path)
    if path.is_dir():
        return Folder(path)
    error = NotADirectoryError if path.exists() else FileNotFoundError
    rule = f"be an existing folder or an archive ({', '.join(ARCHIVES)})"
    raise error(checks.message("root", rule, str(path), "Check the path; on Colab, mount Drive first."))


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which 2 comes before 10."""
    parts = re.split(r"([0-9]+)", name)  # text at even places, digits at odd ones
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def first(names: list[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _walk(folder: Path, depth: int, above: str = "") -> Iterator[tuple[str, Path]]:
    """Every visible file and folder below `folder`, to some depth, by its path from there."""
    for path in folder.iterdir():
        if not _is_visible(path.name):
            continue
        yield above + path.name, path
        if depth > 1 and path.is_dir():
            yield from _walk(path, depth - 1, f"{above}{path.name}/")


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
        raise ValueError(
            checks.message("root", "hold only members that stay inside it", f"{path.name}: {name}", step)
        )
    return clean


def _bound(path: Path, total: int) -> None:
    if total > MAX_BYTES:
        rule, step = "unpack to 4 GiB at most", "Unpack it and pass the folder."
        raise ValueError(checks.message("root", rule, f"{path.name} with {total:,} bytes", step))


def _require_files(place: Place) -> None:
    if not place.members:
        step = "The archive is empty: make it anew."
        raise ValueError(checks.message("root", "hold files", str(place.path), step))


def _damaged(path: Path, error: Exception) -> ValueError:
    told = str(error).partition("\n")[0].rstrip(":") or "cut short"
    step = f"It cannot be read ({told}): copy or download it anew."
    return ValueError(checks.message("root", "be a whole archive", str(path), step))
