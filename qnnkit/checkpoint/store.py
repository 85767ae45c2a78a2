"""The checkpoints of one training, as immutable files; the newest and the best epoch's are kept."""

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
    """A checkpoint is intact, but training cannot resume from its state."""


MISFIT = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError)
"""Errors that loading a state of an unexpected kind can raise."""


class Store:
    """A folder of checkpoints that one process writes and any number may read.

    The newest checkpoint is the one with the highest number, whatever the clock says. A state is intact if
    its file and that of its best epoch both match their names.
    """

    def __init__(self, folder: Path, identity: dict[str, Any] | None = None, keep: int = 2):
        """
        Args:
            folder: The folder, created with the first checkpoint.
            identity: Plain values that distinguish this training from others; files of others are rejected.
            keep: Number of newest states to keep; that of the best epoch is kept too.
        """
        self.folder, self.identity, self.keep = folder, identity or {}, keep
        self.best: str | None = None
        """Name of the best epoch's file; None before this store has read or written one."""
        self._kept: list[str] = []
        """Names of the kept states, the newest first."""
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written right now."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Copies `state` and writes it in the background, after the previous checkpoint is written.

        Args:
            state: The state: tensors, numbers, texts and None, in dictionaries and lists.
            best: Whether this is the best epoch so far.

        Raises:
            OSError: An earlier checkpoint could not be written. Existing checkpoints stay intact.
            TypeError: `state` holds something else.
        """
        self.wait()
        content = {"identity": self.identity, "best": None if best else self.best, "state": state}
        self._writing = self._pool.submit(self._write, file.packed(content), best)

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            OSError: It could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def restore(self, load: Callable[[dict[str, Any]], Any] = lambda state: None) -> dict[str, Any] | None:
        """Returns the newest intact state, or None if there is none; a warning names the skipped files.

        If the file of its best epoch is lost, `best_lost` is True, and the state's own weights count as the
        best.

        Args:
            load: Loads a state; if it raises a ValueError, TypeError, KeyError, IndexError, AttributeError
                or RuntimeError, it is called again with an older one. Its last call counts.

        Raises:
            ValueError: There are intact states, but all are of another training, or `load` rejects them.
            OSError: A file cannot be read; training must not resume without it, because that may pass.
        """
        names, content, wrong = self._names(), None, list[Exception]()
        name = best = ""
        for name in reversed(names):
            try:
                content = self._read(name, load)
                best = str(content.get("best") or name)
                break
            except ValueError as error:
                wrong.append(error)
        problem, self.best_lost = " ".join(map(str, wrong)), False
        try:
            if content and best != name:
                self._read(best)
        except ValueError as error:
            best, self.best_lost = name, True
            problem += f"{error} The weights of the best epoch are lost; those of `{name}` count instead."
        if problem and self._names() != names:  # files were written in the meantime
            return self.restore(load)
        if content is None:
            if unfit := [error for error in wrong if isinstance(error, Unfit)]:
                raise unfit[0]
        else:
            self.best, self._kept = best, names[names.index(name) :: -1]
        if problem:
            how = f"resumes from `{name}`, the newest intact one" if content else "starts from the beginning"
            warnings.warn(f"{problem} Training {how}.", stacklevel=2)
        return content and content["state"]

    def load_best(self, model: nn.Module) -> dict[str, Any]:
        """Loads the weights of the best epoch into a model; returns the state that contains them.

        Args:
            model: A model like the saved one.

        Raises:
            FileNotFoundError: The folder has no intact checkpoint.
            ValueError: The weights are damaged, or belong to another model.
        """
        if self.best is None and self.restore() is None:
            raise FileNotFoundError(f"Folder `{self.folder}` has no intact checkpoint. Train the net first.")
        return self._read(str(self.best), lambda state: weights.load(model, state["model"]))["state"]

    def _read(self, name: str, load: Callable[[dict[str, Any]], Any] = lambda state: None) -> dict[str, Any]:
        path = self.folder / name
        content = file.read(path)
        if (whose := content.get("identity")) != self.identity:
            raise Unfit(f"Checkpoint `{path}` belongs to another training ({whose}): use another folder.")
        try:
            load(dict(content["state"]))
        except MISFIT as error:
            reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise Unfit(f"Checkpoint `{path}` does not fit this training ({reason}).") from None
        return content

    def _names(self) -> list[str]:
        """Names of the checkpoint files in the folder, the newest last."""
        matches = (file.NAME.fullmatch(path.name) for path in self.folder.glob("checkpoint-*"))
        return [match[0] for match in sorted(filter(None, matches), key=lambda match: int(match[1]))]

    def _write(self, packed: file.Packed, best: bool) -> None:
        workspace.make_folder(self.folder)
        number = 1 + max((int(name.split("-")[1]) for name in self._names()), default=0)
        name = file.write(self.folder, number, packed).name
        if best:
            self.best = name
        self._kept = [name, *self._kept][: self.keep]
        drafts = (path.name for path in self.folder.glob(".checkpoint-*"))  # of killed processes
        for old in {*drafts, *self._names()} - {*self._kept, self.best}:
            with contextlib.suppress(OSError):  # files that remain only take space
                (self.folder / old).unlink(missing_ok=True)
