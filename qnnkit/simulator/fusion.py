"""From gates to a plan: alternating constants and phases, fused into blocks of neighbouring wires."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qnnkit.simulator.circuit import Circuit
from qnnkit.simulator.gates import EXACT, Gate, Turn, local_states, states_of

DENSE_WIRES = 6
"""Most wires for which a segment is one matrix on all wires."""
BLOCK_WIRES = 5
"""Most neighbouring wires of a block, in circuits with more wires than DENSE_WIRES."""
SWAP = np.eye(4)[[0, 2, 1, 3]].astype(complex)


@dataclass
class Phases:
    """Gates that are diagonal in one product basis, applied as a product with exp(-i rates @ angles)."""

    members: list[tuple[tuple[int, ...], np.ndarray, np.ndarray, int]] = field(default_factory=list)
    """(wires, basis, rates, index of the angle)."""

    def accepts(self, wires: tuple[int, ...], basis: np.ndarray) -> bool:
        """Whether a gate can join: on other wires, on the same wires in the same basis, or all diagonal."""
        return all(
            not set(there) & set(wires)
            or (there == wires and np.array_equal(other, basis))
            or (_is_identity(other) and _is_identity(basis))
            for there, other, _, _ in self.members
        )

    def touches(self, wires: set[int]) -> bool:
        return any(wires & set(there) for there, *_ in self.members)

    @property
    def angles(self) -> list[int]:
        """Sorted indices of the angles that the phases depend on."""
        return sorted({angle for *_, angle in self.members})

    def table(self, wires: Sequence[int], angles: Sequence[int]) -> np.ndarray:
        """Rates of each basis state of `wires` for each angle, of shape (2**len(wires), n_angles)."""
        table, column = np.zeros((2 ** len(wires), len(angles))), {each: i for i, each in enumerate(angles)}
        for on, _, rates, angle in self.members:
            table[:, column[angle]] += rates[local_states(on, wires)]
        return table


def alternate(
    items: Sequence[Gate],
    turns: Callable[[Gate], bool] = lambda item: item.angle is not None,
    earliest: int = 0,
    through: bool = False,
) -> tuple[list[list[Gate]], list[Phases]]:
    """Splits gates into segments with phases in between: U(t) = V exp(-i rates t) V^dagger.

    V^dagger joins the segment before the phases, V the segment after.

    Args:
        items: Gates in time order.
        turns: Whether a gate becomes phases.
        earliest: First segment that gates may move back to; 1 keeps them out of that before all phases.
        through: Whether phases may move back through permutations, which permute their rates.

    Returns:
        The segments, one more than there are phases, and the phases.
    """
    segments: list[list[Gate]] = [[]]
    phases: list[Phases] = []
    touched: list[set[int]] = [set()]  # wires of each segment, without basis changes
    for item in items:
        wires = set(item.wires)
        if not turns(item):
            k = len(phases)  # as early as possible, so that later gates can be early too
            while k > earliest and not wires & touched[k] and not phases[k - 1].touches(wires):
                k -= 1
            segments[k].append(item)
            touched[k] |= wires
            continue
        assert isinstance(item.form, Turn) and item.angle is not None
        basis, rates, on, home = item.form.basis, item.form.rates, item.wires, None
        moved = on, rates
        for k in range(len(phases) - 1, -1, -1):
            if through and _is_identity(basis):
                moved = _before(segments[k + 1], *moved)
                if moved is None:
                    break
            elif wires & touched[k + 1]:
                break
            if phases[k].accepts(moved[0], basis):
                home, (on, rates) = k, moved
            if phases[k].touches(set(moved[0])):
                break
        if home is None:
            home = len(phases)
            phases.append(Phases())
            segments.append([])
            touched.append(set())
        is_there = any(there == item.wires for there, *_ in phases[home].members)  # with its basis change
        if not is_there and not _is_identity(basis):
            segments[home].append(Gate(item.wires, basis.conj().T))
            segments[home + 1].insert(0, Gate(item.wires, basis))
        basis = basis if on == item.wires else np.eye(len(rates))
        phases[home].members.append((on, basis, rates, item.angle))
    return segments, phases


def _before(
    segment: Sequence[Gate], wires: tuple[int, ...], rates: np.ndarray
) -> tuple[tuple[int, ...], np.ndarray] | None:
    """Wires and rates of a diagonal gate moved from behind a segment to its front: D P = P (P^-1 D P).

    None if a gate in between is not a permutation.
    """
    for item in reversed(segment):
        if not set(item.wires) & set(wires):
            continue
        if not item.permutes or isinstance(item.form, Turn):
            return None
        both = tuple(sorted({*wires, *item.wires}))
        after = _renamed(item.wires, np.argmax(np.abs(item.form), axis=0), both)
        wires, rates = both, rates[local_states(wires, both)][after]
    return wires, rates


def _renamed(wires: Sequence[int], to: np.ndarray, among: Sequence[int]) -> np.ndarray:
    """For each basis state of `among`, the one in which state i of `wires` is replaced by to[i]."""
    local, places = local_states(wires, among), states_of([among.index(w) for w in wires], len(among))
    return np.arange(2 ** len(among)) - places[local] + places[to[local]]


def items(
    circuit: Circuit, on_rows: np.ndarray
) -> tuple[list[Gate], tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The gates of a circuit, split so that each angle is either shared by all samples or per sample.

    Args:
        circuit: The circuit; a gate that depends on both kinds of numbers becomes two gates.
        on_rows: Mask of the numbers that differ between samples, shape (n_numbers,).

    Returns:
        The gates; (matrix, offset) of the shared angles, vector @ matrix + offset; and (matrix, offset) of
        the samples' angles, row @ matrix + offset.
    """
    per_sample, shared = circuit.matrix[:, on_rows], circuit.matrix[:, ~on_rows]
    moving: dict[bool, Any] = {True: per_sample.any(1), False: shared.any(1)}
    place = {by: np.cumsum(angles) - 1 for by, angles in moving.items()}
    applied: list[Gate] = []
    for gate in circuit.gates:
        i = gate.angle
        if i is None:
            applied.append(gate)
        elif moving[True][i] or moving[False][i]:
            sources = [by for by in (True, False) if moving[by][i]]
            applied += [dataclasses.replace(gate, angle=int(place[by][i]), on_rows=by) for by in sources]
        elif isinstance(gate.form, Turn):  # a constant angle
            applied.append(Gate(gate.wires, gate.form.at(float(circuit.offset[i]))))
    offset = np.where(moving[True], 0, circuit.offset)  # each offset counts once
    by_shared = shared[moving[False]].T, offset[moving[False]]
    return applied, by_shared, (per_sample[moving[True]].T, circuit.offset[moving[True]])


# --- blocks and permutations ----------------------------------------------------------------------


@dataclass
class Block:
    """Gates on neighbouring wires as K_m D_m ... K_1 D_1 K_0, with D_j = diag exp(-i rates_j angles)."""

    wires: tuple[int, ...]
    items: list[Gate]
    columns: np.ndarray | None = None
    """In a start block, the wires' state as a linear map of features, (2**n_wires, n_features)."""

    @property
    def n_columns(self) -> int:
        """Columns of the block's matrix in real form; features are real."""
        return 2 ** (len(self.wires) + 1) if self.columns is None else self.columns.shape[1]

    def takes(self, item: Gate) -> bool:
        return set(item.wires) <= set(self.wires)

    def touches(self, item: Gate) -> bool:
        used = self.wires if self.columns is not None else {w for other in self.items for w in other.wires}
        return bool(set(used) & set(item.wires))

    def chain(self, n_angles: int) -> tuple[np.ndarray, np.ndarray]:
        """Matrices K of shape (m + 1, d, d), and rates of the phases between them, (m, d, n_angles).

        In a start block, K_0 is padded with zero columns.
        """
        segments, phases = alternate(self.items, through=True)
        size = 2 ** len(self.wires)
        matrices = np.stack([_product(segment, self.wires) for segment in segments])
        if self.columns is not None:
            matrices[0] = matrices[0] @ np.pad(self.columns, ((0, 0), (0, size - self.columns.shape[1])))
        rates = [group.table(self.wires, range(n_angles)) for group in phases]
        return matrices, np.array(rates).reshape(len(rates), size, n_angles)


@dataclass
class Permutation:
    """Gates that only permute basis states: new[i] = phases[i] * old[index[i]]."""

    n_wires: int
    items: list[Gate]

    def takes(self, item: Gate) -> bool:
        return item.permutes

    def touches(self, item: Gate) -> bool:
        return any(set(other.wires) & set(item.wires) for other in self.items)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(index, phases), each of shape (2**n_wires,)."""
        wires, index = range(self.n_wires), np.arange(2**self.n_wires)
        phases = np.ones(len(index), dtype=complex)
        for item in self.items:
            assert isinstance(item.form, np.ndarray)
            source = np.argmax(np.abs(item.form), axis=1)  # of each local state
            old = _renamed(item.wires, source, wires)
            turn = item.form[np.arange(len(source)), source][local_states(item.wires, wires)]
            index, phases = index[old], turn * phases[old]
        return index, phases


def arrange(segment: Sequence[Gate], n_wires: int, start: Sequence[Block] = ()) -> list[Block | Permutation]:
    """Groups a segment's gates into blocks and permutations, as few as a greedy pass finds.

    A gate joins the earliest group that can hold it, as long as only gates on other wires are in between.
    Swaps, which are permutations, bring distant wires of a gate together.
    """
    groups: list[Block | Permutation] = list(start)
    for item in segment:
        is_one = item.permutes and n_wires > DENSE_WIRES
        for part in [item] if is_one else _gathered(item, n_wires):
            home = None
            for group in reversed(groups):
                home = group if group.takes(part) else home
                if group.touches(part):
                    break
            if home is None:
                permutes = n_wires > DENSE_WIRES and part.permutes
                home = Permutation(n_wires, []) if permutes else Block(_run(part, n_wires), [])
                groups.append(home)
            home.items.append(part)
    for group in groups[len(start) :]:
        if isinstance(group, Block) and n_wires > DENSE_WIRES:  # only the wires it uses
            used = [wire for item in group.items for wire in item.wires]
            group.wires = tuple(range(min(used), max(used) + 1))
    return groups


def cells(n_wires: int) -> list[tuple[int, ...]]:
    """The wires cut into the fewest runs of neighbours that fit into blocks, as equal as possible."""
    if n_wires <= DENSE_WIRES:
        return [tuple(range(n_wires))]
    return [tuple(map(int, part)) for part in np.array_split(range(n_wires), -(-n_wires // BLOCK_WIRES))]


def _run(item: Gate, n_wires: int) -> tuple[int, ...]:
    """The cell or window for a block that contains most wires of a gate and has room for all of them."""
    width = min(max(BLOCK_WIRES, len(item.wires)), n_wires)
    windows = [tuple(range(first, first + width)) for first in range(n_wires - width, -1, -1)]
    runs = [run for run in [*cells(n_wires), *windows] if len(run) >= len(item.wires)]
    return max(runs, key=lambda run: len({*run} & {*item.wires}))


def _gathered(item: Gate, n_wires: int) -> list[Gate]:
    """The gate inside one run of wires, between swaps that move its wires there and back."""
    run = _run(item, n_wires)
    free = [wire for wire in run if wire not in item.wires]
    moved = {wire: free.pop(0) for wire in item.wires if wire not in run}
    swaps = [Gate(pair, SWAP) for pair in moved.items()]
    inside = tuple(moved.get(wire, wire) for wire in item.wires)
    return [*swaps, Gate(inside, item.form, item.angle, item.on_rows), *swaps]


# --- the plan -------------------------------------------------------------------------------------


@dataclass
class Plan:
    """A circuit as a product state and the steps from there to the final state."""

    waves: np.ndarray | None
    """Shape (n_waves, n_angles): features of an initial embedding are cos and sin of `waves @ angles`."""
    n_waves: list[int]
    """Number of waves of each cell of wires; 0 if nothing is embedded there."""
    start: list[Block]
    """One block per cell of wires; empty if the circuit takes its initial state as given."""
    steps: list[Block | Permutation | Phases]

    @property
    def blocks(self) -> list[Block]:
        """All blocks, those of the start first."""
        return [*self.start, *(step for step in self.steps if isinstance(step, Block))]


def plan(items: Sequence[Gate], n_wires: int, n_angles: int, *, given: bool = False) -> Plan:
    """The plan of a circuit with `n_angles` angles per sample, on |0...0> or on a given state."""
    segments, phases = alternate(items, turns=lambda item: item.on_rows, earliest=1)
    states, turned = [np.eye(2, dtype=complex)[:, 0]] * n_wires, {}
    product = None if given else product_start(segments[0], phases, n_wires, n_angles)
    if product is not None:
        states, turned = product
        segments, phases = segments[1:], phases[1:]
    start, waves, n_waves = [], [np.zeros((0, n_angles))], []
    for cell in () if given else cells(n_wires):
        columns, of_cell = start_of_cell([states[w] for w in cell], [turned.get(w) for w in cell], n_angles)
        start.append(Block(cell, [], columns))
        waves.append(of_cell)
        n_waves.append(len(of_cell))
    steps: list[Block | Permutation | Phases] = []
    for i, segment in enumerate(segments):
        first = start if i == 0 else []
        steps += arrange(segment, n_wires, first)[len(first) :]
        steps += phases[i : i + 1]
    return Plan(np.concatenate(waves) if turned else None, n_waves, start, steps)


def product_start(
    segment: Sequence[Gate], phases: Sequence[Phases], n_wires: int, n_angles: int
) -> tuple[list[np.ndarray], dict[int, np.ndarray]] | None:
    """The first embedding on |0...0> as a product state: each wire's state (2,) and its phases.

    Args:
        segment: Constants before the first phases, basis change included.
        phases: Phases of the circuit.
        n_wires: Number of wires.
        n_angles: Number of angles per sample.

    Returns:
        States u of all wires, and the rates r, (n_angles,), of exp(-+i r @ angles) for wires with a phase.
        None if the circuit does not begin with such an embedding.
    """
    states = [np.eye(2, dtype=complex)[:, 0] for _ in range(n_wires)]
    for item in segment:
        if len(item.wires) != 1 or not isinstance(item.form, np.ndarray):
            return None
        states[item.wires[0]] = item.form @ states[item.wires[0]]
    rows: dict[int, np.ndarray] = {}
    for wires, _, rates, angle in phases[0].members if phases else ():
        if len(wires) != 1 or abs(rates.sum()) > EXACT:
            return None
        rows.setdefault(wires[0], np.zeros(n_angles))[angle] += rates[0]
    return (states, rows) if rows else None


def start_of_cell(
    states: Sequence[np.ndarray], turned: Sequence[np.ndarray | None], n_angles: int
) -> tuple[np.ndarray, np.ndarray]:
    """A product state as a linear map of real features: cosines, then sines, of sums of signed angles.

    Entry b of a wire with a phase is u_b exp(-+i h). A product of k such wires has exp(-i s @ h) for all
    signs s. s and -s share a cosine and, up to its sign, a sine, so 2**(k-1) of each are enough.

    Args:
        states: State of each wire of the cell, (2,).
        turned: For each wire the rates of its angle h, (n_angles,), or None if it has no phase.
        n_angles: Number of angles per sample.

    Returns:
        (columns, waves) with state = columns @ (cos, sin)(waves @ angles). Their shapes are
        (2**n_wires, 2 n_waves), or (2**n_wires, 1) if no wire has a phase, and (n_waves, n_angles).
    """
    state, signs = np.ones(1, dtype=complex), np.zeros((1, 0))
    for one, rates in zip(states, turned, strict=True):
        state = np.kron(state, one)
        each = np.array([[1.0], [-1.0]]) if rates is not None else np.zeros((2, 0))
        signs = np.concatenate([np.repeat(signs, 2, axis=0), np.tile(each, (len(signs), 1))], axis=1)
    rates = [each for each in turned if each is not None]
    if not rates:
        return state[:, None], np.zeros((0, n_angles))
    waves = np.unique(signs[signs[:, 0] > 0], axis=0)
    same, opposite = (state[:, None] * (signs @ waves.T == sign * len(rates)) for sign in (1, -1))
    return np.concatenate([same + opposite, 1j * (opposite - same)], axis=1), waves @ np.array(rates)


# --- small things ---------------------------------------------------------------------------------


def _product(segment: Sequence[Gate], wires: tuple[int, ...]) -> np.ndarray:
    n = len(wires)
    product = np.eye(2**n, dtype=complex).reshape([2] * n + [-1])
    for item in segment:
        assert isinstance(item.form, np.ndarray)  # gates with an angle became phases
        k, axes = len(item.wires), [wires.index(wire) for wire in item.wires]
        gate = item.form.reshape([2] * (2 * k))
        product = np.moveaxis(np.tensordot(gate, product, (range(k, 2 * k), axes)), range(k), axes)
    return product.reshape(2**n, -1)


def _is_identity(matrix: np.ndarray) -> bool:
    return np.array_equal(matrix, np.eye(len(matrix)))
