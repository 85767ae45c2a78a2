"""Bringing files to local disk: public datasets over HTTP, your own from any filesystem that fsspec knows."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qnnkit import checks, workspace
from qnnkit.data import places

TIMEOUT = 30.0
"""Seconds without an answer after which an address is given up."""
CHUNK = 2**18
FROM_WEB = (*places.ARCHIVES, ".txt", ".md", ".jsonl", ".ndjson")
"""What an address of a dataset may end in, beside .npz: one file each."""


def store() -> Path:
    """The folder on local disk for what can be fetched again.

    `datasets/` of the workspace; where that is none, or lies on Drive, `~/.cache/qnnkit/datasets`.
    """
    shelf = workspace.shelf("datasets")
    if shelf is not None and not workspace.is_remote(shelf):
        return shelf
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "qnnkit" / "datasets"


def local(root: str | Path) -> Path:
    """Where `root` can be read on local disk.

    A URL (`gs://`, `memory://`, `https://`, ...) is copied to `store()` once, and anew when names, sizes or
    times there have changed; so is a single file on a mounted Drive. Any other path is read where it is.

    Raises:
        ValueError: What the URL needs is not installed.
        OSError: It cannot be reached, or nothing is there.
    """
    told = str(root)
    if workspace.is_url(told):
        protocol = told.partition("://")[0].lower()
        if protocol == "file":
            return Path(urllib.request.url2pathname(urllib.parse.urlsplit(told).path))
        return _from_web(told) if protocol in ("http", "https") else _from_cloud(told, protocol)
    path = Path(root).expanduser()
    if not (workspace.is_remote(path) and path.is_file()):
        return path
    status = path.stat()
    listing = {path.name: [status.st_size, status.st_mtime_ns]}
    with _telling(told):
        return _kept(told, listing, lambda folder: _copy(path, folder / path.name)) / path.name


def _copy(path: Path, target: Path) -> None:
    shutil.copy2(path, target)
    if target.stat().st_size != path.stat().st_size:
        raise OSError("it was written meanwhile")


def _from_web(url: str) -> Path:
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rpartition("/")[2]
    if not name.lower().endswith((*FROM_WEB, ".npz")):
        rule = f"end in {', '.join(FROM_WEB)} or .npz"
        raise ValueError(checks.message("root", rule, url, "Pass the address of a single such file."))
    folder = store() / "copies" / _digest(url)
    return download((url,), folder / name, argument="root")


def _from_cloud(url: str, protocol: str) -> Path:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # not installed; no such protocol
        clouds = protocol in ("gs", "gcs")
        step = "Run: pip install 'qnnkit[cloud]'." if clouds else f"{str(error).rstrip('.')}."
        rule = "be an address whose filesystem is installed"
        raise ValueError(checks.message("root", rule, url, step)) from None
    base = path.rstrip("/").rpartition("/")[2] or "files"
    folder = store() / "copies" / _digest(url)
    try:
        if filesystem.isfile(path):
            found, inside = {path: filesystem.info(path)}, {path: base}
        else:
            found = filesystem.find(path, detail=True)
            inside = {name: f"{base}/{name.removeprefix(path).lstrip('/')}" for name in found}
    except Exception as error:  # each filesystem has errors of its own
        if (folder / "origin.json").exists():
            warnings.warn(f"`{url}` cannot be reached ({error}); the copy from before is used.", stacklevel=3)
            return folder / base
        raise _unreachable(url, error) from None
    if not found:
        step = "Check the address, and that you may read there."
        raise FileNotFoundError(checks.message("root", "be an existing folder or file", url, step))
    if wrong := [name for name in inside.values() if ".." in name.split("/")]:
        raise ValueError(
            checks.message("root", "hold only names that stay inside it", wrong[0], "Rename it.")
        )
    listing = {inside[name]: [info.get("size"), _stamp(info)] for name, info in found.items()}

    def copy(folder: Path) -> None:
        for name in found:
            target = folder / inside[name]
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(name, str(target))

    with _telling(url):
        return _kept(url, listing, copy) / base


def _stamp(info: Mapping[str, object]) -> str:
    """What a filesystem says that changes when a file does."""
    return str(
        next((info[key] for key in ("etag", "md5Hash", "mtime", "updated", "created") if key in info), "")
    )


def _kept(key: str, listing: Mapping[str, object], copy: Callable[[Path], None]) -> Path:
    """The folder of a copy that is whole and has this listing; made, in one step, where it is not there."""
    folder = store() / "copies" / _digest(key)
    origin = {"from": key, "files": dict(listing)}
    with contextlib.suppress(ValueError, OSError):
        if json.loads((folder / "origin.json").read_text(encoding="utf-8")) == origin:
            return folder
    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
        copy(part)
        (part / "origin.json").write_text(json.dumps(origin), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # an older copy
        with contextlib.suppress(FileExistsError):  # another process has just made the same
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _telling(url: str):
    """Turns the errors of a copy into a sentence about `root`."""
    try:
        yield
    except Exception as error:  # each filesystem has errors of its own
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> OSError:
    told = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    step = f"Copying failed ({told}): check the connection, your rights and the space on disk."
    return OSError(checks.message("root", "be within reach", url, step))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def download(
    urls: Sequence[str], path: Path, *, checksum: str | None = None, argument: str = "download"
) -> Path:
    """Fetches one file over HTTP, from the first address that has it; whole and checked, or not at all.

    What has come stays in `<path>.part` when the connection breaks, and the next call goes on there. A
    progress bar shows how far it is.

    Args:
        urls: Addresses of the same file, tried in order.
        path: Where it goes; what is there and has the checksum is not fetched again.
        checksum: "md5:..." or "sha256:..." in hex. Without one, a file that is there counts as right.
        argument: Whose fault a failure is, for the message.

    Raises:
        OSError: No address has it, each with its reason; or the disk is full.
    """
    from filelock import FileLock

    if path.exists() and _fits(path, checksum):
        return path
    workspace.make_folder(path.parent)
    part, lock = path.with_name(f"{path.name}.part"), path.with_name(f".{path.name}.lock")
    reasons: dict[str, str] = {}
    with FileLock(lock):
        if checksum is None:  # nothing would tell whether both halves are of one file
            part.unlink(missing_ok=True)
        for url in () if path.exists() and _fits(path, checksum) else urls:
            reason = _fetch(url, part, checksum)
            if reason is None:
                part.replace(path)
                break
            reasons[url] = reason
    lock.unlink(missing_ok=True)
    if path.exists() and _fits(path, checksum):
        return path
    kept = f" {part.stat().st_size:,} bytes have come and are kept." if part.exists() else ""
    step = f"Check the connection and try again, or put the file at {path} yourself.{kept}"
    raise OSError(checks.message(argument, "find the file at one of its addresses", reasons, step))


def _fetch(url: str, part: Path, checksum: str | None) -> str | None:
    """Fetches into `part`, from where it ends; None once it is whole, else why not."""
    most = -1
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have <= most:  # no further than before
            return "the connection broke again and again"
        most = have
        try:
            whole = _receive(url, part, have)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416 or not have:
                return f"HTTP {error.code} {error.reason}"
            whole = True  # nothing lies beyond what is there
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if part.exists() and part.stat().st_size > have:
                continue
            reason = getattr(error, "reason", None) or error
            return f"not reached: {getattr(reason, 'strerror', None) or reason}"
        except ValueError as error:
            return str(error)
        if not whole:
            continue
        if _fits(part, checksum):
            return None
        part.unlink()
        if not have:
            return "the checksum is wrong"
        most = -1  # what was there before may have been another file's beginning


def _receive(url: str, part: Path, have: int) -> bool:
    """Appends what an address still has; whether that was all of it."""
    from tqdm.auto import tqdm

    if not url.startswith(("http://", "https://")):
        raise ValueError("not an address of the web")
    headers = {"User-Agent": "qnnkit", **({"Range": f"bytes={have}-"} if have else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
        resumed = reply.status == 206 and re.match(rf"bytes {have}-", reply.headers.get("Content-Range", ""))
        start = have if resumed else 0
        length = reply.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if (total or 0) > places.MAX_BYTES:
            raise ValueError(f"larger than 4 GiB ({total:,} bytes)")
        got, name = start, part.name.removesuffix(".part")
        bar = tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=name)
        with bar, part.open("ab" if resumed else "wb") as file:
            while chunk := reply.read(CHUNK):
                got += len(chunk)
                if got > places.MAX_BYTES:
                    raise ValueError("larger than 4 GiB")
                try:
                    file.write(chunk)
                except OSError as error:
                    raise workspace.cannot_write(part, error) from None
                bar.update(len(chunk))
    return total is None or got >= total


def _fits(path: Path, checksum: str | None) -> bool:
    if checksum is None:
        return True
    kind, _, told = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == told
