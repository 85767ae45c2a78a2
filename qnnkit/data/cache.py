"""Tensors that can be made again, a file of the workspace each: images out of many files, features."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from qnnkit import workspace

_cached = ContextVar("cached", default=True)


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Inside, images kept from before do not stand for files of the same names, sizes and times."""
    token = _cached.set(False)
    try:
        yield
    finally:
        _cached.reset(token)


def kept(shelf: str, key: str, make: Callable[[], dict[str, Tensor]], *, what: str) -> dict[str, Tensor]:
    """What `make` gives, read from `<shelf>/<key>.safetensors` of the workspace once it has been made.

    A file that cannot be read is made again, and where nothing can be written the tensors stay in memory:
    both with a warning. Without a workspace nothing is kept.

    Args:
        shelf: "datasets", which `uncached` passes over, or "features".
        key: A hash over all that decides the values.
        make: Gives the tensors.
        what: They are, for the warnings: "Images".
    """
    folder = workspace.shelf(shelf) if shelf != "datasets" or _cached.get() else None
    if folder is None:
        return make()
    path = folder / f"{key}.safetensors"
    if path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            warnings.warn(f"{what} `{path}` are damaged ({error}) and are made again.", stacklevel=3)
    tensors = make()
    try:
        workspace.make_folder(folder)
        workspace.write_bytes(path, save(tensors))
    except OSError as error:
        warnings.warn(f"{what} stay in memory. {error.strerror or error}", stacklevel=3)
    return tensors
