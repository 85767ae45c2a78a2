"""Small recipes of nets that no shipped one has, for tests that need such a net in a run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qnnkit
from qnnkit import data, tasks


class Digits:
    """The digits of scikit-learn; a test derives a recipe from it, with its own `build`."""

    class Settings(data.Images, qnnkit.Settings):
        epochs: int = 2
        batch_size: int = 32
        threads: int = 1
        controls: tuple[str, ...] = ()

    @staticmethod
    def load(settings):
        return data.of(settings)

    @staticmethod
    def task(settings):
        return tasks.Classification.of(settings)


def each_epoch(do: Callable) -> Callable:
    """What `runs.train_all` may be given to call, of which only the rows of epochs reach `do`."""
    return lambda row: do(row) if row["event"] == "epoch" else None


@contextlib.contextmanager
def refused(
    argument: str, error: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Asserts that one line names an argument, its rule, its value and the next step, whatever the words."""
    with pytest.raises(error) as caught:
        yield
    told = str(caught.value)
    assert re.fullmatch(rf"(.*: )?Argument `{re.escape(argument)}` must .+, but is .+[.?] \S.+[.?]", told), (
        told
    )


def disk_order(monkeypatch: Any) -> list[tuple[str, Any]]:
    """Grows with what is flushed (its inode) and what takes a name (that), in this order."""
    done, flush, replace = [], os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        done.append(("flush", os.fstat(descriptor).st_ino))
        flush(descriptor)

    def replaced(source: Any, target: Any) -> None:
        done.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    return done
