"""From gates to a plan: constants and phases in turn, fused into blocks of neighbouring wires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qnnkit.simulator.gates import EXACT, TrigForm, constant, eigenbasis, is_monomial, trig_form
from qnnkit.simulator.trace import Trace

DENSE_WIRES = 6
"""Up to here a segment is one matrix on all wires."""
BLOCK_WIRES = 5
"""Beyond, it is cut into blocks of at most this many neighbouring wires."""
SWAP = np.eye(4)[[0, 2, 1, 3]].astype(complex)


@dataclass(frozen=True)
class Item:
    """A gate on its own wires."""

    wires: tuple[int, ...]
    form: TrigForm | np.ndarray
    """A constant gate has a matrix."""
    angle: int | None = None
    """Index of its angle, among those of the inputs or among those of the weights."""
    on_inputs: bool = False


@dataclass
class Phases:
    """Gates that are diagonal in one product basis: a multiplication by exp(-i rates @ angles)."""

    members: list[tuple[tuple[int, ...], np.ndarray, np.ndarray, int]] = field(default_factory=list)
    """(wires, basis, rates, index of the angle)."""

    def accepts(self, wires: tuple[int, ...], basis: np.ndarray) -> bool:
        """Whether a gate fits: on other wires, in the same basis, or diagonal among diagonals."""
        for there, other, _, _ in self.members:
            same = there == wires and np.array_equal(other, basis)
            diagonal = _is_identity(other) and _is_identity(basis)
            if set(there) & set(wires) and not (same or diagonal):
                return False
        return True

    def touches(self, wires: set[int]) -> bool:
        return any(wires & set(there) for there, *_ in self.members)

    def covers(self, wires: tuple[int, ...]) -> bool:
        """Whether some member stands on exactly these wires, so that their basis change is there already."""
        return any(there == wires for there, _, _, _ in self.members)

    @property
    def angles(self) -> list[int]:
        """Indices of the angles that it turns by."""
        return sorted({angle for *_, angle in self.members})

    def table(self, wires: Sequence[int], angles: Sequence[int]) -> np.ndarray:
        """Rates of every basis state of `wires` by each of the angles: (2**len(wires), n_angles)."""
        table, column = np.zeros((2 ** len(wires), len(angles))), {each: i for i, each in enumerate(angles)}
        for on, _, rates, angle in self.members:
            table[:, column[angle]] += rates[_local(on, wires)]
        return table


def alternate(
    items: Sequence[Item],
    turns: Callable[[Item], bool] = lambda item: item.angle is not None,
    earliest: int = 0,
) -> tuple[list[list[Item]], list[Phases]]:
    """The gates as segments with phases between them: U(t) = V exp(-i rates t) V^dagger U(0).

    V^dagger U(0) goes into the segment before the phases, V into the one after.

    Args:
        items: Gates in the order of time.
        turns: Which of them become phases.
        earliest: First segment to which a gate may be moved back; 1 leaves what is before the first phases.

    Returns:
        Segments, one more than there are phases; the phases.
    """
    segments: list[list[Item]] = [[]]
    phases: list[Phases] = []
    touched: list[set[int]] = [set()]  # wires of each segment, basis changes aside
    for item in items:
        wires = set(item.wires)
        if not turns(item):
            k = len(phases)  # as early as it can be, so that gates after it can be early too
            while k > earliest and not wires & touched[k] and not phases[k - 1].touches(wires):
                k -= 1
            segments[k].append(item)
            touched[k] |= wires
            continue
        assert isinstance(item.form, TrigForm) and item.angle is not None
        basis, rates = eigenbasis(item.form)
        home = None
        for k in range(len(phases) - 1, -1, -1):
            if wires & touched[k + 1]:
                break
            if phases[k].accepts(item.wires, basis):
                home = k
            if phases[k].touches(wires):
                break
        start = item.form.at(0.0)
        starts = np.abs(start - np.eye(len(start))).max() > EXACT  # such as a controlled swap with a phase
        if starts:
            home = None
        if home is None:
            home = len(phases)
            phases.append(Phases())
            segments.append([])
            touched.append(set())
            if starts:
                segments[home].append(Item(item.wires, start))
        if not phases[home].covers(item.wires) and not _is_identity(basis):
            segments[home].append(Item(item.wires, basis.conj().T))
            segments[home + 1].insert(0, Item(item.wires, basis))
        phases[home].members.append((item.wires, basis, rates, item.angle))
    return segments, phases


def items(trace: Trace) -> tuple[list[Item], list[int], list[int]]:
    """The traced gates; the traced indices of the weights' angles and of the inputs' angles."""
    found, on_weights, on_inputs = [], [], []
    for gate in trace.gates:
        wires = gate.wires or (0,)  # a global phase acts anywhere
        everywhere = np.eye(1 if gate.wires else 2)
        if gate.angle is None:
            found.append(Item(wires, np.kron(constant(gate.operation), everywhere)))
            continue
        count = on_inputs if gate.on_inputs else on_weights
        form = trig_form(gate.operation)
        fixed, cosine, sine = (np.kron(part, everywhere) for part in (form.fixed, form.cosine, form.sine))
        found.append(Item(wires, TrigForm(fixed, cosine, sine, form.frequency), len(count), gate.on_inputs))
        count.append(gate.angle)
    return found, on_weights, on_inputs


# --- blocks and permutations ----------------------------------------------------------------------


@dataclass
class Block:
    """Gates on neighbouring wires, one matrix: K_m D_m ... K_1 D_1 K_0, D_j = diag exp(-i rates_j angles)."""

    wires: tuple[int, ...]
    items: list[Item]
    columns: np.ndarray | None = None
    """At the start of a circuit: the state of these wires in terms of features, (2**n_wires, n_features)."""

    def takes(self, item: Item) -> bool:
        return set(item.wires) <= set(self.wires)

    def touches(self, item: Item) -> bool:
        used = self.wires if self.columns is not None else {w for other in self.items for w in other.wires}
        return bool(set(used) & set(item.wires))

    def chain(self, n_angles: int) -> tuple[np.ndarray, np.ndarray]:
        """Matrices K of shape (m + 1, d, d), and rates of the phases after each, (m + 1, d, n_angles).

        No phases follow the last: its rates are zero. The columns of a start fill K_0 up with zeros.
        """
        segments, phases = alternate(self.items)
        size = 2 ** len(self.wires)
        matrices = np.stack([_product(segment, self.wires) for segment in segments])
        if self.columns is not None:
            matrices[0] = matrices[0] @ np.pad(self.columns, ((0, 0), (0, size - self.columns.shape[1])))
        rates = np.zeros((len(matrices), size, n_angles))
        for i, group in enumerate(phases):
            rates[i] = group.table(self.wires, range(n_angles))
        return matrices, rates


@dataclass
class Permutation:
    """Gates that only rename basis states: new[i] = phases[i] * old[index[i]]."""

    n_wires: int
    items: list[Item]

    def takes(self, item: Item) -> bool:
        return isinstance(item.form, np.ndarray) and is_monomial(item.form)

    def touches(self, item: Item) -> bool:
        return any(set(other.wires) & set(item.wires) for other in self.items)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(index, phases), each of shape (2**n_wires,)."""
        everything = range(self.n_wires)
        states = np.arange(2**self.n_wires)
        index, phases = states, np.ones(len(states), dtype=complex)
        for item in self.items:
            assert isinstance(item.form, np.ndarray)
            source = np.argmax(np.abs(item.form), axis=1)  # of each local state
            local, of_wires = _local(item.wires, everything), states_of(item.wires, self.n_wires)
            old = states - of_wires[local] + of_wires[source[local]]
            turn = item.form[np.arange(len(source)), source][local]
            index, phases = index[old], turn * phases[old]
        return index, phases


def arrange(segment: Sequence[Item], n_wires: int, start: Sequence[Block] = ()) -> list[Block | Permutation]:
    """Gates without phases of the inputs between them, as few blocks and permutations as a greedy pass finds.

    A gate joins the earliest group that may hold it and from which it can be reached past gates on other
    wires. Gates on wires far from each other are brought together by swaps, which are permutations.
    """
    groups: list[Block | Permutation] = list(start)
    for item in segment:
        for part in [item] if _block_wires(item, n_wires) or _may_permute(item, n_wires) else _gather(item):
            home = None
            for i in range(len(groups) - 1, -1, -1):
                if groups[i].takes(part):
                    home = i
                if groups[i].touches(part):
                    break
            if home is not None:
                groups[home].items.append(part)
            elif _may_permute(part, n_wires):
                groups.append(Permutation(n_wires, [part]))
            else:
                wires = _block_wires(part, n_wires)
                assert wires is not None  # it was gathered
                groups.append(Block(wires, [part]))
    for group in groups[len(start) :]:
        if isinstance(group, Block) and n_wires > DENSE_WIRES:  # no more wires than it needs
            used = [wire for item in group.items for wire in item.wires]
            group.wires = tuple(range(min(used), max(used) + 1))
    return groups


def cells(n_wires: int) -> list[tuple[int, ...]]:
    """The wires cut into as few even runs of neighbours as blocks may have."""
    if n_wires <= DENSE_WIRES:
        return [tuple(range(n_wires))]
    return [tuple(map(int, part)) for part in np.array_split(range(n_wires), -(-n_wires // BLOCK_WIRES))]


def _block_wires(item: Item, n_wires: int) -> tuple[int, ...] | None:
    """The run of wires for a new block that holds the gate: its cell, or a window; None if it is spread."""
    first, last = min(item.wires), max(item.wires)
    for cell in cells(n_wires):
        if cell[0] <= first and last <= cell[-1]:
            return cell
    width = max(BLOCK_WIRES, len(item.wires))
    if last - first >= width:
        return None
    first = min(first, n_wires - width)
    return tuple(range(first, first + width))


def _may_permute(item: Item, n_wires: int) -> bool:
    return n_wires > DENSE_WIRES and isinstance(item.form, np.ndarray) and is_monomial(item.form)


def _gather(item: Item) -> list[Item]:
    """The gate on the neighbours of its first wire, between swaps that bring its wires there and back."""
    swaps, wires, first = [], list(item.wires), min(item.wires)
    for target in range(first, first + len(wires)):
        if target not in wires:
            far = max(wires)
            swaps.append(Item((target, far), SWAP))
            wires[wires.index(far)] = target
    return [*swaps, Item(tuple(wires), item.form, item.angle, item.on_inputs), *reversed(swaps)]


# --- the whole ------------------------------------------------------------------------------------


@dataclass
class Plan:
    """A circuit as a product state to start from, and the steps from there to the final state."""

    half: np.ndarray | None
    """Rates of the half angles of an embedding at the start, (n_embedded, n_angles)."""
    embedded: list[int]
    """Number of embedded wires in each cell."""
    start: list[Block]
    """One for each cell of wires; none where the circuit is given its first state."""
    steps: list[Block | Permutation | Phases]

    @property
    def blocks(self) -> list[Block]:
        """Those of the start first."""
        return [*self.start, *(step for step in self.steps if isinstance(step, Block))]


def plan(items: Sequence[Item], n_wires: int, n_angles: int, *, given: bool = False) -> Plan:
    """The plan of a circuit whose inputs give `n_angles` angles, on |0...0> or on a given state."""
    segments, phases = alternate(items, turns=lambda item: item.on_inputs, earliest=1)
    half, columns = None, [np.eye(2, dtype=complex)[:, :1]] * n_wires
    product = None if given else product_start(segments[0], phases, n_wires, n_angles)
    if product is not None:
        half, columns = product
        segments, phases = segments[1:], phases[1:]
    start, embedded = [], []
    for cell in () if given else cells(n_wires):
        of_cell = np.eye(1)
        for wire in cell:
            of_cell = np.kron(of_cell, columns[wire])
        start.append(Block(cell, [], of_cell))
        embedded.append(of_cell.shape[1].bit_length() - 1)
    steps: list[Block | Permutation | Phases] = []
    for i, segment in enumerate(segments):
        first = start if i == 0 else []
        steps += arrange(segment, n_wires, first)[len(first) :]
        steps += phases[i : i + 1]
    return Plan(half, embedded, start, steps)


def product_start(
    segment: Sequence[Item], phases: Sequence[Phases], n_wires: int, n_angles: int
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """The first embedding on |0...0>, as the product state that it is.

    Phases exp(-+i h) take a wire's state u to cos(h) u + sin(h) (-+i u): features (cos, sin) of the half
    angle h, and a constant 2 x 2 matrix, which goes into the first block.

    Args:
        segment: Constants before the phases, basis change included.
        phases: Those of the circuit.
        n_wires: Number of wires.
        n_angles: Number of the inputs' angles.

    Returns:
        (half, columns): rates of shape (n_embedded, n_angles) of the embedded wires' half angles, and for
        each wire its state in terms of its features, (2, 2) or, where nothing is embedded, (2, 1).
        None if the circuit does not begin so.
    """
    columns = [np.array([[1.0], [0.0]], dtype=complex) for _ in range(n_wires)]
    for item in segment:
        if len(item.wires) != 1 or not isinstance(item.form, np.ndarray):
            return None
        columns[item.wires[0]] = item.form @ columns[item.wires[0]]
    rows: dict[int, np.ndarray] = {}
    for wires, _, rates, angle in phases[0].members if phases else ():
        if len(wires) != 1 or abs(rates.sum()) > EXACT:
            return None
        rows.setdefault(wires[0], np.zeros(n_angles))[angle] += rates[0]
    for wire in rows:
        columns[wire] = np.concatenate([columns[wire], np.diag([-1j, 1j]) @ columns[wire]], axis=1)
    return (np.array([rows[wire] for wire in sorted(rows)]), columns) if rows else None


# --- small things ---------------------------------------------------------------------------------


def _product(segment: Sequence[Item], wires: tuple[int, ...]) -> np.ndarray:
    n = len(wires)
    product = np.eye(2**n, dtype=complex).reshape([2] * n + [-1])
    for item in segment:
        assert isinstance(item.form, np.ndarray)  # whatever has an angle became phases
        k, axes = len(item.wires), [wires.index(wire) for wire in item.wires]
        gate = item.form.reshape([2] * (2 * k))
        product = np.moveaxis(np.tensordot(gate, product, (range(k, 2 * k), axes)), range(k), axes)
    return product.reshape(2**n, -1)


def _local(wires: Sequence[int], among: Sequence[int]) -> np.ndarray:
    """For each basis state of `among`, the state of `wires` in it."""
    states, n = np.arange(2 ** len(among)), len(among)
    local = np.zeros_like(states)
    for wire in wires:
        local = 2 * local + (states >> (n - 1 - list(among).index(wire)) & 1)
    return local


def states_of(wires: Sequence[int], n_wires: int) -> np.ndarray:
    """For each state of `wires`, the basis state of all wires in which the others are 0."""
    local, states = np.arange(2 ** len(wires)), np.zeros(2 ** len(wires), dtype=int)
    for place, wire in enumerate(reversed(wires)):
        states |= (local >> place & 1) << (n_wires - 1 - wire)
    return states


def _is_identity(matrix: np.ndarray) -> bool:
    return np.array_equal(matrix, np.eye(len(matrix)))
