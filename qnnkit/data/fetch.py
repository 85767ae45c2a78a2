"""Bringing files to local disk: public ones with their checksums, your own from any address fsspec knows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.data import places
from qnnkit.data.places import refusal

TIMEOUT = 30.0
"""Seconds without an answer after which an address is given up."""
CHUNK = 2**18
FROM_WEB = (*places.ARCHIVES, ".txt", ".md", ".jsonl", ".ndjson")
"""What an address of a dataset may end in, beside .npz: one file each."""
PLAIN = {"User-Agent": "qnnkit", "Accept-Encoding": "identity"}
VOLATILE = ("name", "time", "atime", "ino", "nlink", "mode", "uid", "gid")
"""What filesystems say of a file that may change while it does not; `time` is SFTP's last reading."""

Listing = dict[str, dict[str, Any]]
"""A file's path in the copy -> what its address says of it."""


def store() -> Path:
    """The folder on local disk for what can be fetched again.

    `datasets/` of the workspace; where that is none, or lies on Drive, `~/.cache/qnnkit/datasets`.
    """
    shelf = workspace.shelf("datasets")
    if shelf is not None and not workspace.is_remote(shelf):
        return shelf
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "qnnkit" / "datasets"


def local(root: str | Path | None) -> Path:
    """Where `root` can be read on local disk.

    A URL (`gs://`, `memory://`, `https://`, ...) is copied to `store()` once, and anew when what is said of
    its files there has changed: names, sizes, times, etags. So is a single file on a mounted Drive. Where the
    URL cannot be reached, the copy from before is read, with a warning. Other paths are read where they are.

    Raises:
        ValueError: Nothing is given, what the URL needs is not installed, or it is of the web and of no
            single file.
        OSError: It cannot be reached, or nothing is there.
    """
    if not root:
        raise refusal("say where the data lies", root, "Pass the path of its folder, archive or file.")
    source, path = str(root), Path(root).expanduser()
    address = urllib.parse.urlsplit(source) if workspace.is_url(source) else None
    scheme = address.scheme.lower() if address else "file"
    if address and scheme != "file":
        base = urllib.parse.unquote(address.path.rstrip("/").rpartition("/")[2]) or "files"
    else:
        path = Path(urllib.request.url2pathname(address.path)) if address else path
        if not (workspace.is_remote(path) and path.is_file()):
            return path
        source, base = str(path), path.name
    folder = store() / "copies" / hashlib.sha256(source.encode()).hexdigest()[:16]
    kept, part = folder / "origin.json", folder.with_name(f"{folder.name}.part")
    try:
        files, copy = (_on_web if scheme in ("http", "https") else _on_filesystem)(source, base)
    except Exception as error:  # each filesystem has errors of its own
        if str(error).startswith("Argument `"):
            raise
        if not kept.exists():
            raise _unreachable(source, error) from None
        why = f"`{source}` cannot be reached ({_reason(error)})"
        warnings.warn(f"{why}; the copy from before is used.", stacklevel=3)
        return folder / base
    origin = json.dumps({"from": source, "files": files}, sort_keys=True)
    try:
        with _alone(folder):
            if not (kept.exists() and kept.read_text(encoding="utf-8") == origin):
                shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
                part.mkdir()
                copy(part)
                if scheme == "file" and (part / base).stat().st_size != path.stat().st_size:
                    raise OSError("it was written meanwhile")
                (part / "origin.json").write_text(origin, encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)  # an older copy
                part.rename(folder)
    except Exception as error:
        shutil.rmtree(part, ignore_errors=True)
        raise _unreachable(source, error) from None
    return folder / base


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Inside, no other process makes what lies at `path`."""
    from filelock import FileLock

    workspace.make_folder(path.parent)
    locks = workspace.make_folder(store() / "locks")  # left there: one that is gone keeps nobody out
    with FileLock(locks / hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]):
        yield


def _on_web(url: str, base: str) -> tuple[Listing, Callable[[Path], None]]:
    """What a server says of a file, and how it is copied into a folder."""
    import requests

    if not base.lower().endswith((*FROM_WEB, ".npz")):
        raise refusal(f"end in {', '.join(FROM_WEB)} or .npz", url, "Pass the address of a single such file.")
    with requests.get(url, headers=PLAIN, stream=True, timeout=TIMEOUT) as reply:
        reply.raise_for_status()
        said = {name: reply.headers.get(name) for name in ("ETag", "Last-Modified", "Content-Length")}
    return {base: said}, lambda folder: _bring(url, folder / base, folder / f"{base}.part")


def _on_filesystem(url: str, base: str) -> tuple[Listing, Callable[[Path], None]]:
    """What a filesystem of fsspec says of all that lies at an address, and how it is copied into a folder."""
    import fsspec

    try:
        filesystem, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:  # not installed; no such protocol
        is_google = url.lower().startswith(("gs://", "gcs://"))
        step = "Run: pip install 'qnnkit[cloud]'." if is_google else f"{str(error).rstrip('.')}."
        raise refusal("be an address whose filesystem is installed", url, step) from None
    filesystem.invalidate_cache()  # what was listed before in this process may have changed
    if filesystem.isfile(path):
        found, inside = {path: filesystem.info(path)}, {path: base}
    else:
        found = filesystem.find(path, detail=True)
        inside = {name: f"{base}/{name.removeprefix(path).lstrip('/')}" for name in found}
    if not found:
        step = "Check the address, and that you may read there."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", url, step))
    if wrong := [name for name in inside.values() if ".." in name.split("/")]:
        raise refusal("hold only names that stay inside it", wrong[0], "Rename it.")

    def copy(folder: Path) -> None:
        for name in found:
            target = folder / inside[name]
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(name, str(target))

    return {
        inside[name]: {key: str(info[key]) for key in sorted(info) if key not in VOLATILE}
        for name, info in found.items()
    }, copy


def _unreachable(url: str, error: Exception) -> OSError:
    step = f"Copying failed ({_reason(error)}): check the connection, your rights and the space on disk."
    return OSError(checks.message("root", "be within reach", url, step))


def _reason(error: Exception) -> str:
    """What went wrong, in a few words: requests wraps what the system says."""
    reply = getattr(error, "response", None)
    if reply is not None:
        return f"HTTP {reply.status_code} {reply.reason}"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    told = reason.partition("\n")[0].rpartition("] ")[2].rstrip("'\")")
    return told + ")" * (told.count("(") - told.count(")"))


def download(urls: Sequence[str], path: Path, *, checksum: str | None = None) -> Path:
    """Fetches one file over HTTP, from the first address that has it; whole and checked, or not at all.

    pooch checks it and puts it in its place. What has come stays in `<path>.part` when the connection breaks,
    and the next call goes on there. A progress bar shows how far it is.

    Args:
        urls: Addresses of the same file, tried in order.
        path: Where it goes; what is there and has the checksum is not fetched again.
        checksum: "md5:..." or "sha256:..." in hex. Without one, a file that is there counts as right.

    Raises:
        OSError: No address has it, each with its reason; or the disk is full.
    """
    import pooch
    from requests import RequestException

    if path.exists() and pooch.hashes.hash_matches(str(path), checksum):
        return path
    pooch.get_logger().setLevel("WARNING")  # the bar tells what comes
    part = path.with_name(f"{path.name}.part")
    reasons: dict[str, str] = {}
    bring: Any = lambda url, to, _: _bring(url, to, part)  # noqa: E731  what pooch calls
    with _alone(path):
        if checksum is None:  # nothing would tell whether both halves are of one file
            part.unlink(missing_ok=True)
        for url in urls:
            for _ in range(1 + part.exists()):  # what was there may be the beginning of another file
                try:
                    return Path(pooch.retrieve(url, checksum, path.name, path.parent, downloader=bring))
                except RequestException as error:
                    reasons[url] = _reason(error)
                except ValueError as error:
                    reasons[url] = "the checksum is wrong" if "hash" in str(error) else str(error)
    kept = f" {part.stat().st_size:,} bytes have come and are kept." if part.exists() else ""
    step = f"Check the connection and try again, or put the file at {path} yourself.{kept}"
    raise OSError(checks.message("download", "find the file at one of its addresses", reasons, step))


def _bring(url: str, path: str | Path, part: Path) -> None:
    """Fetches a file into `part`, from where that ends, as long as more comes; then moves it to `path`.

    Raises:
        ValueError: It is larger than 4 GiB.
        requests.RequestException: It cannot be had.
        OSError: The disk is full.
    """
    import requests
    from tqdm.auto import tqdm
    from urllib3.exceptions import HTTPError

    whole = False
    while not whole:
        have = part.stat().st_size if part.exists() else 0
        headers = PLAIN | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
                if reply.status_code == 416 and have:  # nothing lies beyond what is there
                    break
                reply.raise_for_status()
                resumed = reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")
                got, length = have if resumed else 0, reply.headers.get("Content-Length")
                total = None if length is None else got + int(length)
                bar = tqdm(total=total, initial=got, unit="B", unit_scale=True, desc=part.stem)
                with bar, part.open("ab" if resumed else "wb") as file:
                    while chunk := reply.raw.read(CHUNK, decode_content=False):
                        got += len(chunk)
                        if max(got, total or 0) > places.MAX_BYTES:
                            raise ValueError(f"larger than 4 GiB ({max(got, total or 0):,} bytes)")
                        try:
                            file.write(chunk)
                        except OSError as error:
                            raise workspace.cannot_write(part, error) from None
                        bar.update(len(chunk))
                whole = total is None or got >= total
        except HTTPError:  # midway
            if part.stat().st_size <= have:
                raise requests.ConnectionError("the connection broke again and again") from None
        except (requests.ConnectionError, requests.Timeout) as error:
            raise requests.ConnectionError(f"not reached: {_reason(error)}") from None
    part.replace(path)
