"""The fused programs of a QNode, each used only while everything that it was traced from is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pennylane as qp
from torch import Tensor

from qnnkit.simulator.fused import Fused
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.guards import Watch, watch
from qnnkit.simulator.trace import Trace, apart, trace

MOST_STATES = 8
"""So many states of what the Python reads are kept with their programs, the last ones."""
CALLS_OF_A_STATE = 16
"""A QNode whose Python reads something new more often than once in so many calls is not traced again."""
MOST_SIZES = 4096
"""So many sizes of batch are traced, each when it is first met, to see that they give the same circuit."""
AUDITS = frozenset(4**n for n in range(3, 16))
"""At these calls the Python runs again: a net under the watch."""


@dataclass
class State:
    """What the Python reads, and the programs of it: by form of the inputs, and by every size of batch."""

    watch: Watch
    by_form: dict[tuple, Fused | str] = field(default_factory=dict)
    by_size: dict[tuple, Fused | str] = field(default_factory=dict)


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
        self.states: list[State] = []
        """The current one first."""
        self._calls, self._changes = 0, 0.0

    def find(self, rows: Tensor) -> Fused | str:
        """The program for rows of shape (batch, n_features) or (n_features,); or why there is none."""
        self._calls += 1
        if self.settled is None:
            if self.states and self.states[0].watch.holds():
                self._changes = max(0.0, self._changes - 1 / CALLS_OF_A_STATE)
            else:
                self._look(_size(rows))
        self.last = self.settled or self._of_size(rows)
        return self.last

    def _look(self, size: tuple) -> None:
        """Finds the state of what the Python reads now among the known ones, or takes it in.

        One that holds in value serves where nothing is traced: only the very objects can be put back.
        """
        for i, state in enumerate(self.states):
            is_traced = size in state.by_size and self._calls not in AUDITS
            if state.watch.holds() or (is_traced and state.watch.holds(in_value=True)):
                self.states.insert(0, self.states.pop(i))
                return
        self._changes += 1
        if self._changes > MOST_STATES:
            self.settled = f"what its Python reads has changed {MOST_STATES} times, one soon after the other"
            return
        try:
            self.states = [State(watch(self.qnode)), *self.states[: MOST_STATES - 1]]
        except NotFusable as reason:
            self.settled = str(reason)

    def _of_size(self, rows: Tensor) -> Fused | str:
        """The program for rows of this size, traced when it is first met, and now and then."""
        known, key = self.states[0].by_size, _size(rows)
        found, is_audit = known.get(key), self._calls in AUDITS
        if found is None or (is_audit and not isinstance(found, str)):
            found = self._traced(rows, is_audit)
            if len(known) < MOST_SIZES:
                known[key] = found
        return found

    def _traced(self, rows: Tensor, is_audit: bool) -> Fused | str:
        """The program for rows of this form, made when it is first met, else compared with a new trace."""
        state, is_one = self.states[0], rows.ndim == 2 and len(rows) == 1
        form = rows.ndim, is_one, rows.shape[-1], rows.dtype, rows.device
        known = state.by_form.get(form)
        if isinstance(known, str) or (known and len(state.by_size) >= MOST_SIZES and not is_audit):
            return known
        shape, shapes = tuple(rows.shape), self.weight_shapes

        def make() -> tuple[Trace, Fused]:
            new = trace(self.qnode, shape, shapes, rows.dtype, self.input_name, rows.device, self.changed)
            return new, known or Fused(new, shape, list(shapes.values()), rows.dtype, rows.device)

        try:
            new, found = apart(make)
            if new.signature != found.trace.signature:
                self.settled = "its Python makes another circuit, and nothing that is watched changed"
        except NotFusable as reason:
            found = str(reason)
        if self.settled is None:
            self.changed()
        found = state.by_form[form] = self.settled or found
        return found

    def changed(self) -> bool:
        """Whether the Python, run just now, has changed what it reads; then that is put back."""
        watch = self.states[0].watch
        if watch.holds():
            return False
        watch.restore()
        self.settled = "its Python changes what it reads"
        return True


def _size(rows: Tensor) -> tuple:
    return rows.shape, rows.dtype, rows.device
