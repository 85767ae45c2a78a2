"""The stored form of a mirrored folder: immutable files, numbered manifests that name them, one pointer.

`CURRENT` names `manifest-000042.json`; the manifest carries its own hash and names, for every path of the
folder, the stored files that make it up, each with its size and hash. Nothing that a manifest names is ever
written again, so a manifest that can be read is a whole state, whatever was killed afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

POINTER = "CURRENT"
DRAFT = ".draft-"
"""How the name of a file begins that a mirror is still writing."""
KEEP = 3
"""Manifests that stay: the newest, and those to fall back to."""
CHUNK = 1 << 20
LONGEST = 1 << 26
"""Bytes of the longest manifest that is read."""
_NAME = re.compile(r"manifest-(\d{6,12})\.json")
_SEGMENT = re.compile(r".*\.\d{9,}-\d{9,}(\.[0-9a-f]+)?\.jsonl")


class Damaged(ValueError):
    """What is stored is not what was written."""


def inside(path: str) -> str:
    """`path`, if it is a relative one that names a visible file below a folder, spelt in one way only.

    Raises:
        ValueError: It is not.
    """
    path.encode()  # half a surrogate names no file
    if "\\" in path or "\0" in path or any(part[:1] in ("", ".") for part in path.split("/")):
        raise ValueError(f"path {path!r} must stay inside the folder")
    return path


Inside = Annotated[str, AfterValidator(inside)]


class Piece(BaseModel):
    """One stored file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Inside
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    found: bool = False
    """It was there before the mirror, which therefore never deletes it."""


class Manifest(BaseModel):
    """One state of a folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    owner: str
    """Which local copy of the folder wrote it."""
    files: dict[Inside, tuple[Piece, ...]]

    @model_validator(mode="after")
    def _no_file_is_a_folder(self) -> Manifest:
        for path in self.files:
            if any(str(above) in self.files for above in PurePosixPath(path).parents):
                raise ValueError(f"path {path!r} lies below a file")
        return self

    @property
    def pieces(self) -> Iterator[Piece]:
        """Every stored file that this state is made of; some may come twice."""
        return (piece for pieces in self.files.values() for piece in pieces)


def manifest_name(number: int) -> str:
    return f"manifest-{number:06d}.json"


def reserved(name: str) -> bool:
    """Whether a stored file must not be called so."""
    return name == POINTER or _NAME.fullmatch(name) is not None


def versioned(name: str, mark: str) -> str:
    """`name` with a mark before its last suffix.

    Example:
        >>> versioned("figures/loss.png", "1a2b3c4d")
        'figures/loss.1a2b3c4d.png'
    """
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.{mark}{path.suffix}"))


def is_segment(name: str) -> bool:
    """Whether `name` looks like part of a file of lines."""
    return _SEGMENT.fullmatch(name) is not None


def numbers(remote: Path) -> list[int]:
    """The numbers of the manifests in a folder, highest first; none if there is no such folder."""
    try:
        found = [_NAME.fullmatch(path.name) for path in remote.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]) for match in found if match), reverse=True)


def read_manifest(remote: Path, number: int) -> Manifest | None:
    """The manifest of that number; None if it is missing or damaged.

    Raises:
        OSError: The folder does not answer, which says nothing about the manifest.
    """
    path = remote / manifest_name(number)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST:
            return None
        content = json.loads(path.read_bytes())
        manifest = Manifest.model_validate_json(json.dumps(content["manifest"]))
        whole = content["sha256"] == _hash(manifest) and manifest.number == number
    except (FileNotFoundError, ValidationError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return manifest if whole else None


def pointed(remote: Path) -> int:
    """The number of the manifest that CURRENT names; 0 if it names none."""
    try:
        told = _NAME.fullmatch((remote / POINTER).read_bytes()[:64].decode().strip())
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(told[1]) if told else 0


def states(remote: Path) -> Iterator[Manifest]:
    """The whole manifests of a folder, newest first.

    What CURRENT names is among them even where a listing lags behind. Where it is older than another (a kill
    came between the two), the other is as whole.
    """
    there = {*numbers(remote), pointed(remote)} - {0}
    for number in sorted(there, reverse=True):
        manifest = read_manifest(remote, number)
        if manifest is not None:
            yield manifest


def publish(remote: Path, manifest: Manifest) -> None:
    """Makes a manifest the current one; everything that it names must be stored before."""
    name = manifest_name(manifest.number)
    content = json.dumps({"sha256": _hash(manifest), "manifest": manifest.model_dump()}, indent=1)
    for path, text in ((remote / name, content), (remote / POINTER, name)):
        draft = remote / f"{DRAFT}{path.name}"
        write_draft(draft, [f"{text}\n".encode()])
        name_draft(draft, path)


def write_draft(draft: Path, chunks: Iterable[bytes]) -> None:
    """Writes a file and asks the disk to keep it; nothing of it stays where that fails.

    Raises:
        OSError: The disk is full, read-only or away.
    """
    try:
        with draft.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _cannot("write", draft, error) from None
        raise


def name_draft(draft: Path, path: Path) -> None:
    """Gives a draft its name, in one step.

    Raises:
        OSError: The disk is read-only or away.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(path)
    except OSError as error:
        raise _cannot("name", path, error) from None


def _cannot(do: str, path: Path, error: OSError) -> OSError:
    return type(error)(error.errno, f"cannot {do} `{path}` ({error.strerror})")


def read_piece(remote: Path, piece: Piece) -> Iterator[bytes]:
    """The content of a stored file, a chunk at a time; it may be trusted only once it has ended.

    Raises:
        Damaged: It is missing, is no plain file inside `remote`, or has another size or hash.
        OSError: It cannot be read.
    """
    path = remote / piece.name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or path.resolve() != remote.resolve() / piece.name:
            raise Damaged(f"`{piece.name}` is no plain file")
        if status.st_size != piece.size:
            raise Damaged(f"`{piece.name}` has {status.st_size} bytes instead of {piece.size}")
        digest, left = hashlib.sha256(), piece.size
        with path.open("rb") as file:
            while left and (chunk := file.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"`{piece.name}` is missing") from None
    if digest.hexdigest() != piece.sha256:
        raise Damaged(f"`{piece.name}` has changed")


def _hash(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest.model_dump(), sort_keys=True).encode()).hexdigest()
