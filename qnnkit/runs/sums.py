"""SHA256SUMS of a run folder, as `sha256sum --check` reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from qnnkit import workspace

FILE = "SHA256SUMS"


def of(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path, sums: Mapping[str, str]) -> None:
    """Writes the hash of each file, by its name relative to `folder`."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    workspace.write_bytes(folder / FILE, lines.encode())


def parse(text: str) -> dict[str, str]:
    """Hash (hex) of each file, by its name; lines that tell none are passed over."""
    pairs = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
    return {name: digest for digest, name in pairs}


def read(folder: Path) -> dict[str, str] | None:
    """What `write` has written; None without it."""
    try:
        return parse((folder / FILE).read_text(errors="replace"))
    except OSError:
        return None
