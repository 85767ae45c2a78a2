"""Public datasets: where they can be had and how it is known that they are right, as `public.yaml` tells."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from qnnkit import checks
from qnnkit.data import fetch

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, mirrors, files with checksums, and what it needs, as the head of the file explains."""


def obtain(name: str, root: str | Path | None, download: bool) -> Path:
    """The folder or archive of a public dataset on local disk.

    Args:
        name: Entry of PUBLIC.
        root: Where it is; None looks where downloads go.
        download: Whether to fetch what is not there. Nothing is fetched without being asked for.

    Raises:
        FileNotFoundError: It is not there; the message says where to get it and how to ask.
        OSError: It cannot be fetched.
    """
    public = PUBLIC[name]
    path = fetch.local(root) if root else fetch.store() / name
    if download and not path.is_file():
        for file, checksum in public["files"].items():
            plain = path / file.replace("%20", " ")
            if not (root and _is_there(plain)):  # files of your own are taken as they are
                fetch.download([mirror + file for mirror in public["mirrors"]], plain, checksum=checksum)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise missing(name, root, [public["needs"]])
    if len(public["files"]) == 1 and path.is_dir():  # an archive stands for the folder it was packed from
        inside = path / next(iter(public["files"])).replace("%20", " ")
        return inside if inside.is_file() else path
    return path


def missing(name: str, root: str | Path | None, files: list[str]) -> FileNotFoundError:
    """What is not there, where to get it, and how to have it fetched."""
    step = f"Get the dataset from {PUBLIC[name]['page']}, or set download to true to have it fetched."
    rule = f"name a folder or an archive with {', '.join(files)}"
    return FileNotFoundError(checks.message("root", rule, None if root is None else str(root), step))


def _is_there(path: Path) -> bool:
    """Whether a folder has a file, packed or not, perhaps deeper down."""
    plain = re.sub(r"\.gz$", "", path.name)
    return any(path.parent.rglob(f"{plain}*")) if path.parent.is_dir() else False
