"""Where a dataset's files are: a folder, an archive (see `archives`), a file, or an address, copied once."""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
import urllib.parse
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qnnkit import checks, words, workspace
from qnnkit.data import archives
from qnnkit.data.archives import ARCHIVES, MAX_BYTES, is_visible, kept, refusal, shelf_of

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LINKS = "links or devices"
TIMEOUT = 30.0
"""Seconds without an answer after which an address counts as out of reach."""
PLAIN = {"Accept-Encoding": "identity"}
VOLATILE = ("name", "time", "atime", "ino", "nlink", "mode", "uid", "gid")
"""What filesystems say of a file that may change while it does not; `time` is SFTP's last reading."""


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
        return self.name.lower().endswith(SUFFIXES)


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
    """The files of a folder by name (see `plain`); hidden ones are skipped, and no link is followed.

    Attributes:
        path: The folder or archive; of a single file, the folder that it is in.
        members: Every file, however deep, in natural order.
        folders: The name of every folder.
        left_out: Names of links and devices.

    Example:
        >>> all(isinstance(member, Member) for member in open_place(".").members)
        True
    """

    def __init__(self, path: Path, folder: Path, left_out: list[str], only: str = "") -> None:
        self.path, self._folder, self.left_out, self.folders = path, folder, [*left_out], set()
        found = [(only, (folder / only).stat())] if only else self._walked(str(folder), "")
        files = {name: Member(plain(name), status.st_size, status.st_mtime_ns) for name, status in found}
        self.left_out.sort()
        self.members = sorted(files.values(), key=lambda each: natural(each.name))
        self._written = {member.name: name for name, member in files.items()}
        if twice := sorted(set(files) - set(self._written.values())):
            step = f"A Mac would take two for one, such as {twice[0]!r}: rename one of them."
            raise refusal("hold names that differ, however accents are written", str(path), step)

    def _walked(self, folder: str, above: str) -> Iterator[tuple[str, os.stat_result]]:
        """Name and status of each file, however deep."""
        with os.scandir(folder) as entries:
            for entry in filter(lambda each: is_visible(each.name), entries):
                name = above + entry.name
                if entry.is_file(follow_symlinks=False):
                    yield name, entry.stat()
                elif entry.is_dir(follow_symlinks=False):
                    self.folders.add(plain(name))
                    yield from self._walked(entry.path, f"{name}/")
                else:
                    self.left_out.append(name)

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


def open_place(root: str | Path | None, single: tuple[str, ...] = ()) -> Place:
    """The files at `root`; an archive is unpacked into the cache when it is first opened.

    Args:
        root: A folder, an archive, or the address of one.
        single: Suffixes of files that are places of their own.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A file of another kind is there; the archive is damaged, empty, too large, or a member
            would land outside of it.
    """
    path = local(root)
    name = path.name.lower()
    if path.is_dir():
        return Place(path, path, [])
    if path.is_file() and name.endswith(ARCHIVES):
        return Place(path, *archives.unpacked(path))
    if path.is_file() and name.endswith(single):
        return Place(path.parent, path.parent, [], only=path.name)
    rule, step = f"be a folder or end in {', '.join((*ARCHIVES, *single))}", "Choose another one."
    if path.exists():
        raise refusal(rule, str(path), step)
    step = "Check the path; on Colab, mount Drive first."
    raise FileNotFoundError(checks.message("root", "be an existing folder or file", str(path), step))


def local(root: str | Path | None) -> Path:
    """Where `root` can be read on local disk.

    A URL (`gs://`, `memory://`, `https://`, ...) is copied to `archives.store()` once, and again when what is
    said of its files there has changed: names, sizes, times, etags. If the URL cannot be reached, the copy
    from before is used, with a warning. Paths are returned as they are.

    Raises:
        ValueError: Nothing is given, what the URL needs is not installed, or a web address has no file name.
        OSError: It cannot be reached, or nothing is there.
    """
    if not root:
        raise refusal("say where the data lies", root, "Pass the path of its folder, archive or file.")
    url = str(root)
    if not workspace.is_url(url):
        return Path(root).expanduser()
    base, folder = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name, shelf_of("copies", url)
    is_web = url.lower().startswith(("http://", "https://"))
    if is_web and "." not in base:
        raise refusal("end in the name of a file", url, "Pass the address of an archive or of a single file.")
    try:
        said, copy = (_on_web if is_web else _on_filesystem)(url)
        kept(folder, {"from": url, "files": said}, lambda draft: copy(draft / (base or "files")))
    except Exception as error:  # each filesystem has errors of its own
        reason = words.first_line(error)
        if reason.startswith("Argument `"):
            raise
        if not (folder / "record.json").exists():
            step = f"Copying failed ({reason}): check the connection, your rights and the space on disk."
            raise OSError(checks.message("root", "be within reach", url, step)) from None
        warnings.warn(f"`{url}` cannot be reached ({reason}); the copy from before is used.", stacklevel=3)
    return folder / (base or "files")


Copied = tuple[dict[str, Any], Callable[[Path], None]]
"""What an address says of each of its files, and what copies them to a path."""


def _on_web(url: str) -> Copied:
    import requests

    with requests.get(url, headers=PLAIN, stream=True, timeout=TIMEOUT) as reply:
        reply.raise_for_status()
        said = {name: reply.headers.get(name) for name in ("ETag", "Last-Modified", "Content-Length")}
    return said, lambda path: fetch(url, path, None)


def _on_filesystem(url: str) -> Copied:
    import fsspec

    try:
        filesystem, root = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:  # not installed; no such protocol
        is_google = url.lower().startswith(("gs://", "gcs://"))
        step = "Run: pip install 'qnnkit[cloud]'." if is_google else f"{words.first_line(error)}."
        raise refusal("be an address whose filesystem is installed", url, step) from None
    filesystem.invalidate_cache()  # what was listed before in this process may have changed
    infos = {root: filesystem.info(root)} if filesystem.isfile(root) else filesystem.find(root, detail=True)
    if not infos:
        step = "Check the address, and that you may read there."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", url, step))
    if wrong := [name for name in infos if ".." in name.split("/")]:
        raise refusal("hold only names that stay inside it", wrong[0], "Rename it.")

    def copy(path: Path) -> None:
        for name in infos:
            target = path / name.removeprefix(root).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(name, str(target))

    return {
        name: {key: str(info[key]) for key in sorted(info) if key not in VOLATILE}
        for name, info in infos.items()
    }, copy


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
    bring: Any = pooch.HTTPDownloader(True, 2**18, headers=PLAIN, timeout=TIMEOUT)
    try:
        pooch.retrieve(url, checksum, path.name, path.parent, downloader=bring)
    except OSError as error:
        reply = getattr(error, "response", None)  # which requests leaves open, socket and all
        if reply is not None:
            reply.close()
        raise


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


def left_out(names: dict[str, list[str]]) -> list[str]:
    """Sentences on what is not read, by what it is."""
    return [f"Left out {len(each):,} {what}: {first(each)}." for what, each in names.items() if each]
