"""Where things live, and how files are written there: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

FULL = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean: no more fits here."""


def home() -> Path:
    """The folder that relative run folders are meant from.

    `QNNKIT_HOME` where it is set (on Colab: a folder on Drive); else the current folder, or the checkout
    when a notebook is open in its `notebooks/`, so that the shell and JupyterLab agree.

    Raises:
        NotADirectoryError: `QNNKIT_HOME` names a file.
    """
    named = os.environ.get("QNNKIT_HOME")
    if named:
        path = Path(named).expanduser()
        with contextlib.suppress(PermissionError):  # told, with the next step, when a folder is made there
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(
                    f"QNNKIT_HOME must name a folder, but {named} is a file. Set it to a folder or unset it."
                )
        return path
    here = Path.cwd()
    return here.parent if here.name == "notebooks" and (here.parent / "qnnkit").is_dir() else here


def shelf(name: str) -> Path | None:
    """The folder `name` of the workspace, for what may be made again; None where no workspace is in use.

    One is in use where `QNNKIT_HOME` names it, or where it holds runs: a plain script leaves no files behind.
    """
    folder = home()
    return folder / name if os.environ.get("QNNKIT_HOME") or (folder / "runs").is_dir() else None


def place(path: str | Path) -> Path:
    """`path`, made absolute: a relative one is meant from `home()`."""
    path = Path(path).expanduser()
    return path if path.is_absolute() else (home() / path).absolute()


def make_folder(path: Path) -> Path:
    """`path`, made if missing.

    Raises:
        NotADirectoryError: A file is there, or on the way there.
        PermissionError: Nothing may be written there; found by writing.
        OSError: The disk is full or read-only.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(
            f"Folder `{path}` must be a folder or free, but a file is in its place. Choose another run_dir."
        ) from None
    except OSError as error:
        raise cannot_write(path, error) from None
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file at `path` in one step; a kill or a full disk leaves the old one whole.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise cannot_write(path, error) from None


def write_json(path: Path, content: Any) -> None:
    """As `write_bytes`, for plain values."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Adds one JSON line; what a full disk cut short is taken back, so every line in the file is whole.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    try:
        path.touch()
        with path.open("r+b", buffering=0) as file:
            end = _whole_length(file)
            file.truncate(end)  # a kill may have left half a line
            file.seek(end)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise cannot_write(path, error) from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; none if it is missing. A last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]  # what follows the last newline is not whole


def _whole_length(file: BinaryIO) -> int:
    """Bytes up to and with the last newline, found from the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def cannot_write(path: Path, error: OSError) -> OSError:
    """The same error with a sentence: what could not be written, why, and the next step."""
    step = "Free some space" if error.errno in FULL else "Choose a folder that you may write to"
    return type(error)(
        error.errno,
        f"Cannot write `{path}` ({error.strerror}). {step} and run the same command again; what was written "
        "before is whole.",
    )
