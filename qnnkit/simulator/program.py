"""From gates to a fused program: segments of few matrix products between multiplications by phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qnnkit.simulator.gates import EXACT, TrigForm, constant, eigenbasis, embed, real_form, trig_form
from qnnkit.simulator.trace import Trace

DENSE_WIRES = 6
"""Up to here a segment is one matrix on all wires."""
BLOCK_WIRES = 5
"""Beyond, a segment is cut into blocks of this many wires: 64 x 64 real numbers each."""


@dataclass(frozen=True)
class Item:
    """A gate that does not depend on the inputs, on its own wires."""

    wires: tuple[int, ...]
    form: TrigForm | np.ndarray
    angle: int | None = None
    """Index among the weights' angles; None for a constant."""


@dataclass
class Phases:
    """Gates on the inputs, diagonal in one product basis: a multiplication by exp(-i angles @ rates)."""

    members: list[tuple[tuple[int, ...], np.ndarray, np.ndarray, int]] = field(default_factory=list)
    """(wires, basis, rates, index among the inputs' angles)."""

    def accepts(self, wires: tuple[int, ...], basis: np.ndarray) -> bool:
        """Whether a gate fits: on other wires, in the same basis, or diagonal among diagonals."""
        for there, other, _, _ in self.members:
            same = there == wires and np.array_equal(other, basis)
            diagonal = _is_identity(other) and _is_identity(basis)
            if set(there) & set(wires) and not (same or diagonal):
                return False
        return True

    def covers(self, wires: tuple[int, ...]) -> bool:
        """Whether some member stands on exactly these wires, so that their basis change is there already."""
        return any(there == wires for there, _, _, _ in self.members)

    def table(self, n_wires: int, n_angles: int) -> np.ndarray:
        """Rates of every basis state: of shape (n_angles, 2**n_wires)."""
        table = np.zeros((n_angles, 2**n_wires))
        states = np.arange(2**n_wires)
        for wires, _, rates, angle in self.members:
            local = np.zeros_like(states)
            for wire in wires:
                local = 2 * local + (states >> (n_wires - 1 - wire) & 1)
            table[angle] += rates[local]
        return table


@dataclass(frozen=True)
class Block:
    """Gates on few wires: row -> row @ prod_g (fixed + cos * cosine + sin * sine)_g, all real."""

    wires: tuple[int, ...]
    fixed: np.ndarray
    """Of shape (n_factors, 2 * 2**k, 2 * 2**k); a constant block has one factor."""
    cosine: np.ndarray
    sine: np.ndarray
    angles: tuple[int, ...]
    """Index of each factor's angle; empty for a constant block."""
    frequencies: tuple[float, ...]


def stages(trace: Trace) -> tuple[list[list[Item]], list[Phases], list[int], list[int]]:
    """Segments of gates on weights alone, and the phases between them.

    Returns:
        Segments, one more than there are phases; the phases; the traced indices of the weights' angles and
        of the inputs' angles, in the order in which items and phases count them.
    """
    segments: list[list[Item]] = [[]]
    phases: list[Phases] = []
    on_weights: list[int] = []
    on_inputs: list[int] = []
    touched: set[int] = set()  # by gates since the last phases
    for gate in trace.gates:
        if not gate.on_inputs:
            if gate.angle is None:
                segments[-1].append(Item(gate.wires, constant(gate.operation)))
            else:
                segments[-1].append(Item(gate.wires, trig_form(gate.operation), len(on_weights)))
                on_weights.append(gate.angle)
            touched |= set(gate.wires)
            continue
        form = trig_form(gate.operation)
        basis, rates = eigenbasis(form)
        start = form.at(0.0)
        if np.abs(start - np.eye(len(start))).max() > EXACT:  # such as a controlled swap with a phase
            segments[-1].append(Item(gate.wires, start))
            touched |= set(gate.wires)
        fits = phases and not touched & set(gate.wires) and phases[-1].accepts(gate.wires, basis)
        if not fits:
            phases.append(Phases())
            segments.append([])
            touched = set()
        if not phases[-1].covers(gate.wires) and not _is_identity(basis):
            segments[-2].append(Item(gate.wires, basis.conj().T))
            segments[-1].insert(0, Item(gate.wires, basis))
        phases[-1].members.append((gate.wires, basis, rates, len(on_inputs)))
        assert gate.angle is not None  # a gate on the inputs has one
        on_inputs.append(gate.angle)
    return segments, phases, on_weights, on_inputs


def blocks(segment: Sequence[Item], n_wires: int) -> list[Block]:
    """The segment's gates, fused into as few blocks as a greedy pass finds."""
    limit = n_wires if n_wires <= DENSE_WIRES else BLOCK_WIRES
    groups: list[tuple[set[int], list[Item]]] = []
    for item in segment:
        home = None
        for i in range(len(groups) - 1, -1, -1):
            if len(groups[i][0] | set(item.wires)) <= limit:
                home = i
            if groups[i][0] & set(item.wires):
                break  # it does not commute with what stands there
        if home is None:
            groups.append((set(item.wires), [item]))
        else:
            groups[home][0].update(item.wires)
            groups[home][1].append(item)
    if n_wires <= DENSE_WIRES:
        return [_block(tuple(range(n_wires)), items) for _, items in groups]
    return [_block(tuple(sorted(wires)), items) for wires, items in groups]


def _block(wires: tuple[int, ...], items: Sequence[Item]) -> Block:
    """Constant gates go into the factor of the gate after them; what is left at the end, into the last."""
    size = 2 * 2 ** len(wires)
    before = np.eye(size)
    factors: list[list[np.ndarray]] = []
    angles, frequencies = [], []
    for item in items:
        if isinstance(item.form, np.ndarray):
            before = before @ real_form(embed(item.form, item.wires, wires))
            continue
        parts = (item.form.fixed, item.form.cosine, item.form.sine)
        factors.append([before @ real_form(embed(part, item.wires, wires)) for part in parts])
        assert item.angle is not None
        angles.append(item.angle)
        frequencies.append(item.form.frequency)
        before = np.eye(size)
    if not factors:
        return Block(wires, before[None], np.zeros((1, size, size)), np.zeros((1, size, size)), (), ())
    factors[-1] = [part @ before for part in factors[-1]]
    fixed, cosine, sine = (np.stack(parts) for parts in zip(*factors, strict=True))
    return Block(wires, fixed, cosine, sine, tuple(angles), tuple(frequencies))


def _is_identity(matrix: np.ndarray) -> bool:
    return np.array_equal(matrix, np.eye(len(matrix)))
