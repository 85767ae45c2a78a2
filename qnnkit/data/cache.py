"""Tensors that can be made again, a file of the workspace each: images out of many files, features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from qnnkit import workspace


def kept(shelf: str, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` gives, read from `<shelf>/<key>.safetensors` of the workspace once it has been made.

    A file that cannot be read is made again. Nothing is kept without a workspace, or where it cannot be
    written.

    Args:
        shelf: "datasets" or "features".
        key: A hash over all that decides the values.
        make: Gives the tensors.
    """
    folder = workspace.shelf(shelf)
    if folder is None:
        return make()
    path = folder / f"{key}.safetensors"
    with contextlib.suppress(SafetensorError, OSError):
        return load_file(path)
    tensors = make()
    with contextlib.suppress(OSError):  # a full disk: they are made again next time
        workspace.make_folder(folder)
        workspace.write_bytes(path, save(tensors))
    return tensors
