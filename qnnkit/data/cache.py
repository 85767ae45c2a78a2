"""Cache of tensors in the workspace, one file for each set: decoded images, and features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from qnnkit import workspace


def kept(shelf: str, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the tensors of `make`, cached in `<shelf>/<key>.safetensors` of the workspace.

    A file that cannot be read is made again. Nothing is cached without a workspace, or if it is not writable.

    Args:
        shelf: "datasets" or "features".
        key: Hash of everything that determines the values.
        make: Computes the tensors.
    """
    folder = workspace.shelf(shelf)
    if folder is None:
        return make()
    path = folder / f"{key}.safetensors"
    with contextlib.suppress(SafetensorError, OSError):
        return load_file(path)
    tensors = make()
    with contextlib.suppress(OSError):  # such as a full disk: the tensors are computed again next time
        workspace.make_folder(folder)
        workspace.write_bytes(path, save(tensors))
    return tensors
