"""The fused programs of a QNode, each used only while everything that it was traced from is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pennylane as qp
from torch import Tensor

from qnnkit.simulator.fused import Fused
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.trace import Trace, apart, trace
from qnnkit.simulator.watch import Watch, watch

MOST_STATES = 8
"""A QNode whose Python reads more different things than that, one after the other, is not traced again."""
MOST_SIZES = 4096
"""So many sizes of batch are traced, each when it is first met, to see that they give the same circuit."""
AUDITS = frozenset(4**n for n in range(3, 16))
"""At these calls the Python runs again: a net under the watch."""


class Programs:
    """Finds the program for some rows, or why there is none.

    Args:
        qnode: Takes `input_name` and the names of `weight_shapes`.
        weight_shapes: Shapes by name, in the order in which the programs take the weights.
        input_name: Name of the argument that takes the data.
    """

    def __init__(self, qnode: qp.QNode, weight_shapes: Mapping[str, tuple[int, ...]], input_name: str):
        self.qnode, self.weight_shapes, self.input_name = qnode, dict(weight_shapes), input_name
        self.last: Fused | str | None = None
        """What the last call found."""
        self.settled: str | None = None
        """Why there is no program any more, whatever the rows."""
        self._watch: Watch | None = None
        self._states: list[Any] = []
        self._state = 0
        self._by_form: dict[tuple, Fused | str] = {}
        self._by_size: dict[tuple, Fused | str] = {}
        self._calls = 0

    def find(self, rows: Tensor) -> Fused | str:
        """The program for rows of shape (batch, n_features) or (n_features,); or why there is none."""
        if self.settled is None and (self._watch is None or not self._watch.holds()):
            self._look()
        self._calls += 1
        key = rows.shape, rows.dtype, rows.device, self._state
        found = self.settled or self._by_size.get(key)
        if found is None or (self._calls in AUDITS and not isinstance(found, str)):
            found = self._traced(rows)
            if len(self._by_size) < MOST_SIZES:
                self._by_size[key] = found
        self.last = found
        return found

    def _look(self) -> None:
        """Takes in what the Python reads now."""
        try:
            self._watch = watch(self.qnode)
        except NotFusable as reason:
            self.settled = str(reason)
            return
        if self._watch.key not in self._states:
            self._states.append(self._watch.key)
        if len(self._states) > MOST_STATES:
            self.settled = f"what its Python reads has changed {MOST_STATES} times"
            self._by_form, self._by_size = {}, {}
            return
        self._state = self._states.index(self._watch.key)

    def _traced(self, rows: Tensor) -> Fused | str:
        """The program for rows of this form, made when it is first met, else compared with a new trace."""
        form = (
            rows.ndim,
            rows.ndim == 2 and len(rows) == 1,
            rows.shape[-1],
            rows.dtype,
            rows.device,
            self._state,
        )
        known, is_audit = self._by_form.get(form), self._calls in AUDITS
        if isinstance(known, str) or (known and len(self._by_size) >= MOST_SIZES and not is_audit):
            return known
        shape, shapes = tuple(rows.shape), self.weight_shapes

        def make() -> tuple[Trace, Fused]:
            new = trace(self.qnode, shape, shapes, rows.dtype, self.input_name, rows.device, self.changed)
            if known is None:
                return new, Fused(new, shape, list(shapes.values()), rows.dtype, rows.device)
            return new, known

        try:
            new, found = apart(make)
        except NotFusable as reason:
            found = str(reason)
        else:
            if new.signature != found.trace.signature:
                found = self.settled = "its Python makes another circuit, and nothing that is watched changed"
        if self.settled is None:
            self.changed()
        found = self._by_form[form] = self.settled or found
        return found

    def changed(self) -> bool:
        """Whether the Python, run just now, has changed what it reads; then that is put back."""
        assert self._watch is not None
        if self._watch.holds():
            return False
        self._watch.restore()
        self.settled = "its Python changes what it reads"
        return True
