"""The checkpoints of one training: immutable files, of which the newest and the best epoch's stay."""

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
            keep: How many states stay, the newest first; the best epoch stays too.
        """
        self.folder, self.identity, self.keep = folder, identity or {}, keep
        self.best: str | None = None
        """Name of the best epoch's file, as far as this store has read or written."""
        self._kept: list[str] = []
        """Names of the states that stay, the newest first."""
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written right now."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Copies `state` and writes it in the background; waits first if the one before is not written yet.

        Args:
            state: As `file.packed` wants it.
            best: This is the best epoch so far.

        Raises:
            OSError: An earlier one could not be written. Whatever was whole before still is.
        """
        self.wait()
        content = {"identity": self.identity, "best": None if best else self.best, "state": state}
        self._writing = self._pool.submit(self._write, file.packed(content), best)

    def wait(self) -> None:
        """Returns when the last checkpoint is written.

        Raises:
            OSError: It could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def restore(self, load: Callable[[dict[str, Any]], Any] = lambda state: None) -> dict[str, Any] | None:
        """The newest whole state, or None where there is none; a warning names what was skipped.

        If the file of its best epoch is lost, `best_lost` is True, and its own weights count as the best.

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
                best = str(content.get("best") or name)
                break
            except (ValueError, OSError) as error:
                wrong.append(error)
        problem, self.best_lost = " ".join(map(str, wrong)), False
        try:
            if content and best != name:
                self._read(best)
        except (ValueError, OSError) as error:
            best, self.best_lost = name, True
            problem += f"{error} The weights of the best epoch are lost; those of `{name}` count instead."
        if problem and self._names() != names:  # written meanwhile
            return self.restore(load)
        if content is None:
            if unfit := [error for error in wrong if isinstance(error, Unfit)]:
                raise unfit[0]
        else:
            self.best, self._kept = best, names[names.index(name) :: -1]
        if problem:
            how = f"goes on from `{name}`, the newest that is whole" if content else "begins again"
            warnings.warn(f"{problem} Training {how}.", stacklevel=2)
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
        return self._read(str(self.best), lambda state: weights.load(model, state["model"]))["state"]

    def _read(self, name: str, load: Callable[[dict[str, Any]], Any] = lambda state: None) -> dict[str, Any]:
        path = self.folder / name
        content = file.read(path)
        if content.get("identity") != self.identity:
            raise ValueError(f"Checkpoint `{path}` belongs to another training ({content.get('identity')}).")
        try:
            load(dict(content["state"]))
        except MISFIT as error:
            reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise Unfit(f"Checkpoint `{path}` does not fit this training ({reason}).") from None
        return content

    def _names(self) -> list[str]:
        """Of the files in the folder, the newest last."""
        matches = (file.NAME.fullmatch(path.name) for path in self.folder.glob("checkpoint-*"))
        return [match[0] for match in sorted(filter(None, matches), key=lambda match: int(match[1]))]

    def _write(self, packed: file.Packed, best: bool) -> None:
        workspace.make_folder(self.folder)
        number = 1 + max((int(name.split("-")[1]) for name in self._names()), default=0)
        name = file.write(self.folder, number, packed).name
        if best:
            self.best = name
        self._kept = [name, *self._kept][: self.keep]
        drafts = (path.name for path in self.folder.glob(".*"))  # of killed processes
        for old in {*drafts, *self._names()} - {*self._kept, self.best}:
            with contextlib.suppress(OSError):  # the new state is written: what stays costs only room
                (self.folder / old).unlink(missing_ok=True)
