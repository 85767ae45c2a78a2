"""Files from other places on local disk: public ones with their checksums, yours from any address."""

from __future__ import annotations

import hashlib
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qnnkit import checks, words, workspace
from qnnkit.data.archives import kept, refusal, store

TIMEOUT = 30.0
"""Seconds without an answer after which an address counts as out of reach."""
PLAIN = {"Accept-Encoding": "identity"}
VOLATILE = ("name", "time", "atime", "ino", "nlink", "mode", "uid", "gid")
"""What filesystems say of a file that may change while it does not; `time` is SFTP's last reading."""

Listing = dict[str, dict[str, Any]]
"""A file's path in the copy -> what its address says of it."""


def local(root: str | Path | None) -> Path:
    """Where `root` can be read on local disk.

    A URL (`gs://`, `memory://`, `https://`, ...) is copied to `store()` once, and again when what is said of
    its files there has changed: names, sizes, times, etags. If the URL cannot be reached, the copy from
    before is used, with a warning. Paths are returned as they are.

    Raises:
        ValueError: Nothing is given, what the URL needs is not installed, or a web address has no file name.
        OSError: It cannot be reached, or nothing is there.
    """
    if not root:
        raise refusal("say where the data lies", root, "Pass the path of its folder, archive or file.")
    source = str(root)
    if not workspace.is_url(source):
        return Path(root).expanduser()
    address = urllib.parse.urlsplit(source)
    if address.scheme.lower() == "file":
        return Path(urllib.request.url2pathname(address.path))
    base = urllib.parse.unquote(address.path.rstrip("/").rpartition("/")[2]) or "files"
    folder = store() / "copies" / hashlib.sha256(source.encode()).hexdigest()[:16]
    is_web = address.scheme.lower() in ("http", "https")
    try:
        files, copy = (_on_web if is_web else _on_filesystem)(source, base)
        kept(folder, {"from": source, "files": files}, copy)
    except Exception as error:  # each filesystem has errors of its own
        if str(error).startswith("Argument `"):
            raise
        reason = words.first_line(error)
        if not (folder / "record.json").exists():
            step = f"Copying failed ({reason}): check the connection, your rights and the space on disk."
            raise OSError(checks.message("root", "be within reach", source, step)) from None
        warnings.warn(f"`{source}` cannot be reached ({reason}); the copy from before is used.", stacklevel=3)
    return folder / base


def _on_web(url: str, base: str) -> tuple[Listing, Callable[[Path], None]]:
    """What a server says of a file, and how it is copied into a folder."""
    import requests

    if "." not in base:
        raise refusal("end in the name of a file", url, "Pass the address of an archive or of a single file.")
    with requests.get(url, headers=PLAIN, stream=True, timeout=TIMEOUT) as reply:
        reply.raise_for_status()
        said = {name: reply.headers.get(name) for name in ("ETag", "Last-Modified", "Content-Length")}
    return {base: said}, lambda folder: _retrieve(url, folder / base, None)


def _on_filesystem(url: str, base: str) -> tuple[Listing, Callable[[Path], None]]:
    """What a filesystem of fsspec says of all that is at an address, and how it is copied into a folder."""
    import fsspec

    try:
        filesystem, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:  # not installed; no such protocol
        is_google = url.lower().startswith(("gs://", "gcs://"))
        step = "Run: pip install 'qnnkit[cloud]'." if is_google else f"{words.first_line(error)}."
        raise refusal("be an address whose filesystem is installed", url, step) from None
    filesystem.invalidate_cache()  # what was listed before in this process may have changed
    if filesystem.isfile(path):
        infos, inside = {path: filesystem.info(path)}, {path: base}
    else:
        infos = filesystem.find(path, detail=True)
        inside = {name: f"{base}/{name.removeprefix(path).lstrip('/')}" for name in infos}
    if not infos:
        step = "Check the address, and that you may read there."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", url, step))
    if wrong := [name for name in inside.values() if ".." in name.split("/")]:
        raise refusal("hold only names that stay inside it", wrong[0], "Rename it.")

    def copy(folder: Path) -> None:
        for name, target in inside.items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(name, str(folder / target))

    return {
        inside[name]: {key: str(info[key]) for key in sorted(info) if key not in VOLATILE}
        for name, info in infos.items()
    }, copy


def _retrieve(url: str, path: Path, checksum: str | None) -> None:
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


def download(url: str, path: Path, checksum: str) -> None:
    """Fetches a file over HTTP by pooch; whole and checked, or not at all.

    Args:
        url: Its address.
        path: Where it goes; a file that is there and has the checksum is not fetched again.
        checksum: "md5:..." or "sha256:..." in hex.

    Raises:
        OSError: It cannot be reached, is another file, or the disk is full.
    """
    try:
        _retrieve(url, path, checksum)
    except (OSError, ValueError) as error:  # of requests; of a wrong checksum
        step = f"Check the connection and try again, or put the file at {path} yourself."
        reason = {url: words.first_line(error)}
        raise OSError(checks.message("download", "find the file at its address", reason, step)) from None
