"""The checkpoints of one training: immutable files, and a tiny pointer that makes one of them current."""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from qnnkit import workspace
from qnnkit.checkpoint import file, weights

POINTER = "current.json"


class Store:
    """A folder of checkpoints; one process writes it, any number may read.

    A state counts as whole when its file and that of its best epoch both are what their names say. The
    pointer is a hint: where it is lost, the newest whole state is found from the files alone, whatever the
    clock says.
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
        self._passed_over: set[str] = set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written right now."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, state: dict[str, Any], *, best: bool = False) -> None:
        """Copies `state` and writes it in the background; waits first if the one before is not written yet.

        Args:
            step: Optimizer steps taken.
            state: As `file.write` wants it.
            best: This is the best epoch so far.

        Raises:
            OSError: An earlier one could not be written. Whatever was whole before still is.
        """
        self.wait()
        content = {"identity": self.identity, "best": None if best else self.best, "state": state}
        content = file.copied(content)
        self._thread = threading.Thread(target=self._write, args=(step, content, best), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when the last checkpoint is written.

        Raises:
            OSError: It could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def restore(self) -> dict[str, Any] | None:
        """The newest whole state, or None where there is none; what is passed over is told by a warning.

        Where every state lacks its best epoch's file, the newest is taken without it: `best_lost` is then
        True, and its own weights stand for the best.
        """
        told: list[str] = []
        without_best: list[tuple[str, dict[str, Any]]] = []
        self.best_lost = False
        for name in self._candidates():
            try:
                content = self._read(name)
            except (ValueError, OSError) as error:
                told.append(str(error))
                self._passed_over.add(name)
                continue
            best = content["best"] or name
            try:
                if best != name:
                    self._read(best)
            except (ValueError, OSError) as error:
                told.append(str(error))
                without_best.append((name, content))
                continue
            return self._resumed(name, best, content, told)
        if without_best:
            name, content = without_best[0]
            self.best_lost = True
            told.append(
                "The weights of the best epoch are lost; those of the newest checkpoint count instead."
            )
            return self._resumed(name, name, content, told)
        if told:
            warnings.warn(f"{_each_once(told)} Training begins anew.", stacklevel=2)
        return None

    def _resumed(self, name: str, best: str, content: dict[str, Any], told: list[str]) -> dict[str, Any]:
        self.best = best
        if told:
            sentence = f"{_each_once(told)} Training goes on from `{name}`, the newest that is whole."
            warnings.warn(sentence, stacklevel=3)
        return content["state"]

    def load_best(self, model: nn.Module) -> dict[str, Any]:
        """Puts the weights of the best epoch into a model; returns the state that they are part of.

        Raises:
            FileNotFoundError: Nothing was saved here.
            ValueError: They are damaged, or belong to another model.
        """
        if self.best is None and self.restore() is None:
            raise FileNotFoundError(f"Folder `{self.folder}` holds no whole checkpoint. Train the net first.")
        assert self.best is not None
        state = self._read(self.best)["state"]
        weights.load(self.folder / self.best, model, state["model"])
        return state

    def _read(self, name: str) -> dict[str, Any]:
        content = file.read(self.folder / name)
        if content.get("identity") != self.identity:
            raise ValueError(
                f"Checkpoint `{self.folder / name}` belongs to another training ({content.get('identity')})."
            )
        return content

    def _candidates(self) -> list[str]:
        """Names of what may be restored: what the pointer says, then the newest first."""
        found = sorted(
            (path.name for path in self.folder.glob("step-*.safetensors")), key=_step, reverse=True
        )
        found = [name for name in found if file.NAME.fullmatch(name)]
        current = self._pointer().get("current")
        return [*([current] if current in found else []), *(name for name in found if name != current)]

    def _pointer(self) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / POINTER).read_text())
        except (OSError, ValueError):
            return {}
        kept = content.get("kept") if isinstance(content, dict) else None
        if not isinstance(kept, list) or not all(
            isinstance(state, list) and all(isinstance(name, str) for name in state) for state in kept
        ):
            return {}
        return content

    def _write(self, step: int, content: dict[str, Any], best: bool) -> None:
        try:
            workspace.make_folder(self.folder)
            name = file.write(self.folder, step, content).name
            if best:
                self.best = name
            gone = {name, *self._passed_over}
            before = [state for state in self._pointer().get("kept", []) if not gone & set(state)]
            kept = [[name, self.best or name], *before][: self.keep]
            workspace.write_json(self.folder / POINTER, {"current": name, "kept": kept})
            self._prune({name for state in kept for name in state})
        except BaseException as error:  # told by the next `save` or `wait`
            self._error = error

    def _prune(self, kept: set[str]) -> None:
        """Removes files that are older than the newest that is kept; a newer one may yet be wanted."""
        newest = max(map(_step, kept))
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in kept and _step(path.name) < newest:
                with contextlib.suppress(OSError):  # the new state is written: what stays costs only room
                    path.unlink(missing_ok=True)


def _step(name: str) -> int:
    found = file.NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _each_once(sentences: list[str]) -> str:
    return " ".join(dict.fromkeys(sentences))
