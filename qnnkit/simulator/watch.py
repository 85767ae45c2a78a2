"""What a QNode's Python reads besides its arguments, and whether it is as it was.

A fused program stands for Python that ran once. `watch` follows that Python through its bytecode to every
value it can reach: globals, closures, attributes, containers, arrays, helpers. No user code runs. What cannot
be followed, such as a random number or a file, is refused.

A chain of attributes that starts at a global, at a closure cell or at `self` is resolved exactly: `net.scale`
watches one attribute of `net`. Any other use hands the object on: then all of it is watched, whatever its
class defines included.
"""

from __future__ import annotations

import abc
import collections
import itertools
import operator
from typing import Any

import pennylane as qp
import torch

from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.trusted import ABSENT
from qnnkit.simulator.walk import Walk, alike, content_of


class Watch:
    """What a QNode's Python reads, as it was when the watch was made."""

    def __init__(self, walk: Walk):
        self._alike = operator.is_ if walk.compares else alike
        self._dtype = torch.get_default_dtype()
        self._token = abc.get_cache_token() if walk.checks_kinds else None
        self._entries, self._fields = _columns(walk.entries), _columns(walk.fields)
        views = list(itertools.chain.from_iterable(walk.views.values()))
        self._views, self._lengths = [view for view, _ in views], [len(items) for _, items in views]
        self._items = [item for _, items in views for item in items]
        self._arrays, self._copies = list(walk.arrays.values()), walk.copies

    def holds(self, in_value: bool = False) -> bool:
        """Whether everything read is as it was: parts by identity, arrays by content; some microseconds.

        Args:
            in_value: Whether other numbers, texts, lists and arrays do that are equal; this takes longer.
        """
        (dicts, names, values), (owners, fields, contents) = self._entries, self._fields
        is_ = self._alike if in_value else operator.is_
        try:
            return (
                torch.get_default_dtype() is self._dtype
                and (self._token is None or abc.get_cache_token() == self._token)
                and all(map(is_, map(dict.get, dicts, names, itertools.repeat(ABSENT)), values))
                and all(map(is_, map(object.__getattribute__, owners, fields), contents))
                and list(map(len, self._views)) == self._lengths
                and all(map(is_, itertools.chain.from_iterable(self._views), self._items))
                and all(content_of(array) == content for array, content, _ in self._arrays)
            )
        except (AttributeError, RuntimeError, ValueError):  # an attribute or a cell is empty now
            return False

    def restore(self) -> None:
        """Puts containers and arrays back to what they were."""
        for array, content, known in self._arrays:
            if content_of(array) != content:
                array[...] = known
        for container, known in self._copies:
            container.clear()
            fill = container.extend if isinstance(container, (list, collections.deque)) else container.update
            fill(known)


def watch(qnode: qp.QNode) -> Watch:
    """Follows a QNode's Python to everything it reads.

    Raises:
        NotFusable: The Python reads, or changes, what cannot be watched.
    """
    try:
        return Watch(Walk(qnode))
    except NotFusable:
        raise
    except Exception as error:  # of an object that makes up what is asked of it, or is nested too deeply
        raise NotFusable(f"its Python reads what cannot be watched ({type(error).__name__})") from error


def _columns(rows: dict[Any, tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*rows.values(), strict=True)) or ((), (), ())
