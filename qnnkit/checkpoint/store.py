"""The checkpoints of one training: immutable files, each of which tells which others to keep."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import nn

from qnnkit import workspace
from qnnkit.checkpoint import file, weights


class Unfit(ValueError):
    """A checkpoint is whole, but no state that can be gone on from."""


MISFIT = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError)
"""What goes wrong where a state is of another kind than whoever goes on from it needs."""
Load = Callable[[dict[str, Any]], None]


class Store:
    """A folder of checkpoints; one process writes it, any number may read.

    The newest is the one of the highest number, whatever the clock says. A state counts as whole when its
    file and that of its best epoch both are what their names say.
    """

    def __init__(self, folder: Path, identity: dict[str, Any] | None = None, keep: int = 2):
        """
        Args:
            folder: Made when first written.
            identity: Plain values that tell this training from its neighbours; files of another are refused.
            keep: How many states stay, the newest first; the best epoch of each stays too.
        """
        self.folder, self.identity, self.keep = folder, identity or {}, keep
        self.best: str | None = None
        """Name of the best epoch's file, as far as this store has read or written."""
        self.best_lost = False
        self._kept: list[list[str]] = []
        """Names of the states that stay and of their bests, the newest first."""
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written right now."""
        return self._writing is not None and not self._writing.done()

    def clear_drafts(self) -> None:
        """Removes what killed processes left half written; only the process that writes here may call it."""
        for path in filter(Path.is_file, self.folder.glob(".*")):
            path.unlink(missing_ok=True)

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Copies `state` and writes it in the background; waits first if the one before is not written yet.

        Args:
            state: As `file.packed` wants it.
            best: This is the best epoch so far.

        Raises:
            OSError: An earlier one could not be written. Whatever was whole before still is.
        """
        self.wait()
        earlier = self._kept[: self.keep - 1]
        content = {"identity": self.identity, "best": None if best else self.best, "state": state}
        packed = file.packed(content | {"kept": earlier})
        self._writing = self._pool.submit(self._write, packed, best, earlier)

    def wait(self) -> None:
        """Returns when the last checkpoint is written.

        Raises:
            OSError: It could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def restore(self, load: Load = lambda state: None) -> dict[str, Any] | None:
        """The newest whole state, or None where there is none; what is passed over is told by a warning.

        If the file of its best epoch is lost, `best_lost` is True, and its own weights stand for the best.

        Args:
            load: Takes up a state; where it raises one of MISFIT, it is given an older one. What it was given
                last counts.

        Raises:
            ValueError: There are whole ones, but `load` refuses them all.
        """
        names, content, wrong = self._names(), None, list[Exception]()
        name = best = ""
        for name in reversed(names):
            try:
                content = self._read(name, load)
                best = content["best"] or name
                break
            except (ValueError, OSError) as error:
                wrong.append(error)
        told, self.best_lost = " ".join(map(str, wrong)), False
        try:
            if best != name:
                self._read(best)
        except (ValueError, OSError) as error:
            best, self.best_lost = name, True
            told += f"{error} The weights of the best epoch are lost; those of `{name}` count instead."
        if told and self._names() != names:  # written meanwhile
            return self.restore(load)
        if content is None:
            if unfit := [error for error in wrong if isinstance(error, Unfit)]:
                raise unfit[0]
            how = "begins again"
        else:
            how = f"goes on from `{name}`, the newest that is whole"
            self.best, self._kept = best, [[name, best], *content["kept"]]
        if told:
            warnings.warn(f"{told} Training {how}.", stacklevel=2)
        return content and content["state"]

    def load_best(self, model: nn.Module) -> dict[str, Any]:
        """Puts the weights of the best epoch into a model; returns the state that they are part of.

        Args:
            model: As the one that was saved.

        Raises:
            FileNotFoundError: Nothing was saved here.
            ValueError: They are damaged, or belong to another model.
        """
        if self.best is None and self.restore() is None:
            raise FileNotFoundError(f"Folder `{self.folder}` holds no whole checkpoint. Train the net first.")
        assert self.best is not None
        return self._read(self.best, lambda state: weights.load(model, state["model"]))["state"]

    def _read(self, name: str, load: Load = lambda state: None) -> dict[str, Any]:
        path = self.folder / name
        content = file.read(path)
        if content.get("identity") != self.identity:
            raise ValueError(f"Checkpoint `{path}` belongs to another training ({content.get('identity')}).")
        try:
            content["kept"] = [[str(name), str(best)] for name, best in content["kept"]]
            if not isinstance(content["best"], str | None):
                raise TypeError("its best is no name")
            load(dict(content["state"]))
        except MISFIT as error:
            told = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise Unfit(f"Checkpoint `{path}` does not fit this training ({told}).") from None
        return content

    def _names(self) -> list[str]:
        """Of the files in the folder, the newest last."""
        found = (file.NAME.fullmatch(path.name) for path in self.folder.glob("checkpoint-*"))
        return [match[0] for match in sorted(filter(None, found), key=lambda match: int(match[1]))]

    def _write(self, packed: file.Packed, best: bool, earlier: list[list[str]]) -> None:
        workspace.make_folder(self.folder)
        newest = file.NAME.fullmatch((["", *self._names()])[-1])
        name = file.write(self.folder, int(newest[1]) + 1 if newest else 1, packed).name
        if best:
            self.best = name
        self._kept = [[name, self.best or name], *earlier]
        stay = {name for state in self._kept for name in state}
        for name in set(self._names()) - stay:
            with contextlib.suppress(OSError):  # the new state is written: what stays costs only room
                (self.folder / name).unlink(missing_ok=True)
