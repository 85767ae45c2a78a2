"""Tensors that can be made again, a file of the workspace each: images out of many files, features."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from qnnkit import workspace


def kept(shelf: str, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` gives, read from `<shelf>/<key>.safetensors` of the workspace once it has been made.

    A file that cannot be read is made again. Nothing is kept without a workspace, or, with a warning,
    where its disk is full.

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
    try:
        workspace.make_folder(folder)
        workspace.write_bytes(path, save(tensors))
    except OSError as error:
        step = f"Not kept: `{path}` ({error.strerror or error}). What it would hold is made again next time."
        warnings.warn(step, stacklevel=3)
    return tensors
