"""What is done to a batch of states, each step with its way back.

A state is (2, 2**n_wires, batch): real and imaginary part, basis state (wire 0 most significant), sample.
`run` is plain torch, which autograd, functional transforms and compilers can follow. `forward` and
`backward` are the same step and its gradient by hand: fewer operations, fewer passes over memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Place = tuple[int, int]
"""Of a matrix: its group, and its row there."""


class Gradients(NamedTuple):
    """Where gradients are added up; None for what asks for none."""

    columns: Tensor | None
    groups: list[Tensor | None]


class Affine(NamedTuple):
    """angles = table @ columns + offset."""

    table: Tensor
    offset: Tensor
    rows: Tensor | None = None
    """Which of the columns' rows it reads; None for all."""

    def __call__(self, columns: Tensor) -> Tensor:
        columns = columns if self.rows is None else columns.index_select(0, self.rows)
        return torch.addmm(self.offset, self.table, columns)

    def backward(self, gradient: Tensor, to_columns: Tensor) -> None:
        """Adds to the gradient of the columns, from that of the angles."""
        if self.rows is None:
            to_columns.addmm_(self.table.t(), gradient)
        else:
            to_columns.index_add_(0, self.rows, self.table.t() @ gradient)


class Step:
    """A step that leaves its way back to autograd; those below that run most do better."""

    places: Sequence[Place] = ()
    """Of the matrices it uses."""
    on_inputs = False
    """Whether it uses the columns."""

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        """The new state.

        Args:
            state: The old one; None at the start.
            columns: Inputs, or their angles, of shape (n, batch).
            matrices: The step's own: real forms, of shape (2 d, 2 d).
        """
        raise NotImplementedError

    def matrices(self, groups: Sequence[Tensor]) -> list[Tensor]:
        return [groups[group][row] for group, row in self.places]

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """The new state, and what the way back needs."""
        given = (state, columns if self.on_inputs else None, *self.matrices(groups))
        leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in given]
        with torch.enable_grad():
            result = self.run(leaves[0], leaves[1], leaves[2:])  # pyright: ignore[reportArgumentType]
        return result.detach(), (result, leaves)

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> Tensor | None:
        """Adds to the gradients of columns and matrices; returns that of the old state."""
        result, leaves = saved
        found = iter(torch.autograd.grad(result, [leaf for leaf in leaves if leaf is not None], gradient))
        to_state, to_columns, *to_matrices = (None if leaf is None else next(found) for leaf in leaves)
        if to_columns is not None and to.columns is not None:
            to.columns.add_(to_columns)
        for (group, row), to_matrix in zip(self.places, to_matrices, strict=True):
            if (target := to.groups[group]) is not None and to_matrix is not None:
                target[row].add_(to_matrix)
        return to_state


# --- the start ------------------------------------------------------------------------------------


class Start(Step):
    """The product state of an embedding on |0...0>, through the blocks that follow, cell by cell.

    Args:
        half: Half angles of the embedded wires, if any.
        embedded: Number of embedded wires in each cell.
        places: Of the cells' matrices.
    """

    def __init__(self, half: Affine | None, embedded: Sequence[int], places: Sequence[Place]):
        self.half, self.embedded, self.places = half, embedded, places
        self.on_inputs = half is not None

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        features: list[Tensor] = []
        if self.half is not None:
            half = self.half(columns)
            features = list(torch.stack([half.cos(), half.sin()], dim=1))  # each (2, batch)
        for n_embedded, matrix in zip(self.embedded, matrices, strict=True):
            mine, features = features[:n_embedded], features[n_embedded:]
            cell = matrix[:, : 2**n_embedded] @ _outer(mine) if mine else matrix[:, :1]
            cell = cell.unflatten(0, (2, -1))
            state = cell if state is None else _complex_outer(state, cell)
        return state


class StartOfOneCell(Start):
    """The same for all wires at once, with an embedding, and a way back by hand.

    The features are v = (cos h_1, sin h_1) x (cos h_2, sin h_2) x ...; d v / d h_w exchanges the two entries
    of wire w, with a sign.
    """

    def __init__(self, half: Affine, embedded: Sequence[int], places: Sequence[Place]):
        super().__init__(half, embedded, places)
        [n] = embedded
        states = torch.arange(2**n)
        bits = 1 << torch.arange(n - 1, -1, -1)
        # (d v / d h_w)[i] = sign[w, i] v[i ^ bit_w]: minus where cos became -sin
        self.partners = (states ^ bits[:, None]).flatten().to(half.table.device)
        self.signs = torch.where((states & bits[:, None]) == 0, -1.0, 1.0).to(half.table).unsqueeze(1)

    def features(self, columns: Tensor) -> Tensor:
        """The product state of the embedding, of shape (2**n_embedded, batch)."""
        assert self.half is not None
        half = self.half(columns)
        return _outer(list(torch.stack([half.cos(), half.sin()], dim=1)))

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        features = self.features(columns)
        [matrix] = self.matrices(groups)
        return (matrix[:, : len(features)] @ features).unflatten(0, (2, -1)), features

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> None:
        features, [matrix], [(group, row)] = saved, self.matrices(groups), self.places
        flat = gradient.flatten(0, 1)
        if (target := to.groups[group]) is not None:
            target[row, :, : len(features)].addmm_(flat, features.t())
        if to.columns is not None:
            assert self.half is not None
            to_features = matrix[:, : len(features)].t() @ flat
            turned = features.index_select(0, self.partners).unflatten(0, (-1, len(features)))
            to_half = torch.bmm(self.signs, turned.mul_(to_features)).squeeze(1)
            self.half.backward(to_half, to.columns)


def _outer(vectors: list[Tensor]) -> Tensor:
    """The product of vectors, each (n, batch), the first most significant; by halves, in few operations."""
    while len(vectors) > 1:
        pairs = zip(vectors[0::2], vectors[1::2], strict=False)
        joined = [(a.unsqueeze(1) * b.unsqueeze(0)).flatten(0, 1) for a, b in pairs]
        vectors = joined + vectors[len(vectors) - len(vectors) % 2 :]
    return vectors[0]


def _complex_outer(a: Tensor, b: Tensor) -> Tensor:
    """The product state of (2, m, batch) and (2, n, batch): (2, m n, batch)."""
    (a_re, a_im), (b_re, b_im) = a.unsqueeze(2), b.unsqueeze(1)
    return torch.stack([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re]).flatten(1, 2)


class Given(Step):
    """A state that the circuit is handed: the last rows of the columns, its amplitudes.

    Args:
        first: Where they begin: real parts, then imaginary parts if there are any.
        index: Basis state of each amplitude, of shape (n_amplitudes,).
        n_states: Number of basis states of all wires.
        is_complex: Whether there are imaginary parts.
    """

    on_inputs = True

    def __init__(self, first: int, index: Tensor, n_states: int, is_complex: bool):
        self.first, self.index, self.n_states, self.is_complex = first, index, n_states, is_complex

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        rows = columns[self.first :]
        parts = rows.unflatten(0, (2, -1)) if self.is_complex else torch.stack([rows, torch.zeros_like(rows)])
        state = rows.new_zeros(2, self.n_states, rows.shape[1])
        return state.index_copy(1, self.index, parts)


# --- phases ---------------------------------------------------------------------------------------


class Phases(Step):
    """Each sample's state times exp(-i angles), angles of shape (2**n_wires, batch)."""

    on_inputs = True

    def __init__(self, angles: Affine):
        self.angles = angles

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        angles = self.angles(columns)
        cosine, sine = angles.cos(), angles.sin()
        re, im = state
        return torch.stack([re * cosine + im * sine, im * cosine - re * sine])

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        angles = self.angles(columns)
        cosine, sine = angles.cos(), angles.sin_()
        turned = _turn(state, cosine, sine, 1)
        return turned, (turned, cosine, sine, state.shape[-1])

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> Tensor:
        turned, cosine, sine, width = saved
        if to.columns is not None:  # d re / d angle = im, d im / d angle = -re, both of the new state
            (re, im), (to_re, to_im) = turned, gradient
            to_angles = (to_re * im).addcmul_(to_im, re, value=-1)
            self.angles.backward(to_angles, to.columns)
        to_state = _turn(gradient, cosine, sine, -1)
        return to_state if width > 1 else to_state.sum(-1, keepdim=True)


def _turn(state: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    re, im = state
    turned = state.new_empty(2, *cosine.shape)
    torch.mul(re, cosine, out=turned[0]).addcmul_(im, sine, value=sign)
    torch.mul(im, cosine, out=turned[1]).addcmul_(re, sine, value=-sign)
    return turned


# --- permutations ---------------------------------------------------------------------------------


class Permutation(Step):
    """new[i] = exp(-i angles[i]) * old[index[i]], over basis states.

    Args:
        index: Of shape (2**n_wires,).
        inverse: The inverse permutation.
        angles: Of shape (2**n_wires, 1), or None where no phase is turned.
    """

    def __init__(self, index: Tensor, inverse: Tensor, angles: Tensor | None):
        self.index, self.inverse = index, inverse
        # Rows of a matrix are gathered fastest: real and imaginary parts are gathered at once.
        self.there = torch.cat([index, len(index) + index])
        self.back = torch.cat([inverse, len(inverse) + inverse])
        self.turns = None if angles is None else (angles.cos(), angles.sin())

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        state = state[:, self.index]
        if self.turns is None:
            return state
        (re, im), (cosine, sine) = state, self.turns
        return torch.stack([re * cosine + im * sine, im * cosine - re * sine])

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        state = _gather(state, self.there)
        return (state if self.turns is None else self._turn(state, 1)), None

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> Tensor:
        return _gather(gradient if self.turns is None else self._turn(gradient, -1), self.back)

    def _turn(self, state: Tensor, sign: int) -> Tensor:
        assert self.turns is not None
        cosine, sine = (part.expand(-1, state.shape[-1]) for part in self.turns)
        return _turn(state, cosine, sine, sign)


def _gather(state: Tensor, index: Tensor) -> Tensor:
    return state.flatten(0, 1).index_select(0, index).view(state.shape)


# --- blocks ---------------------------------------------------------------------------------------


class Block(Step):
    """A matrix on neighbouring wires.

    Args:
        place: Of the matrix.
        before: Number of basis states of the wires before the block's.
        whole: Whether it acts on all wires.
    """

    def __init__(self, place: Place, before: int, *, whole: bool):
        self.places, self.before, self.whole = (place,), before, whole

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        [matrix] = matrices
        if self.whole:
            return (matrix @ state.flatten(0, 1)).view(state.shape)
        a, b, re, im = self._split(matrix, state)
        return torch.stack([a @ re - b @ im, b @ re + a @ im]).view(state.shape)

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return self._apply(self.matrices(groups)[0], state), state

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> Tensor:
        state, [matrix], [(group, row)] = saved, self.matrices(groups), self.places
        if (target := to.groups[group]) is not None:
            self._add_outer(target[row], gradient, state)
        return self._apply(matrix.t(), gradient)

    def _split(self, matrix: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Real and imaginary parts of the matrix, (before, d, d), and of the state, (before, d, the rest)."""
        size = len(matrix) // 2
        a, b = (part.expand(self.before, -1, -1) for part in matrix[:, :size].unflatten(0, (2, size)))
        re, im = state.reshape(2, self.before, size, -1)
        return a, b, re, im

    def _apply(self, matrix: Tensor, state: Tensor) -> Tensor:
        if self.whole:
            return (matrix @ state.flatten(0, 1)).view(state.shape)
        a, b, re, im = self._split(matrix, state)
        product = torch.empty_like(state, memory_format=torch.contiguous_format)
        new_re, new_im = product.view(2, *re.shape)
        torch.bmm(a, re, out=new_re).baddbmm_(b, im, alpha=-1)
        torch.bmm(b, re, out=new_im).baddbmm_(a, im)
        return product

    def _add_outer(self, target: Tensor, gradient: Tensor, state: Tensor) -> None:
        if self.whole:
            target.addmm_(gradient.flatten(0, 1), state.flatten(0, 1).t())
            return
        size = len(target) // 2
        re, im = state.reshape(2, self.before, size, -1).transpose(2, 3)
        to_re, to_im = gradient.reshape(2, self.before, size, -1)
        # Only the left half of the real form is read above: the right half repeats it.
        target[:size, :size] += torch.bmm(to_re, re).baddbmm_(to_im, im).sum(0)
        target[size:, :size] += torch.bmm(to_im, re).baddbmm_(to_re, im, alpha=-1).sum(0)


# --- the end --------------------------------------------------------------------------------------


class Weigh(Step):
    """Expectation values of what is diagonal: table @ |state|^2, of shape (n_columns, batch).

    Args:
        table: Of shape (n_columns, 2**n_wires).
    """

    def __init__(self, table: Tensor):
        self.table = table

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        return self.table @ probabilities(state)

    def forward(self, state: Any, columns: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return self.run(state, columns, ()), state

    def backward(
        self, gradient: Tensor, saved: Any, columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> Tensor:
        return (self.table.t() @ (2 * gradient)) * saved


def probabilities(state: Tensor) -> Tensor:
    """|state|^2, of shape (2**n_wires, batch)."""
    re, im = state
    return torch.addcmul(re * re, im, im)


class Correlate(Step):
    """Expectation values of any Pauli words, grouped by the bits they flip (see `Readout`).

    Args:
        flips: (flip, real, imag, partner): tables of shape (n_columns, 2**n_wires), and i ^ flip for each i.
    """

    def __init__(self, flips: Sequence[tuple[int, Tensor, Tensor, Tensor]]):
        self.flips = flips

    def run(self, state: Any, columns: Any, matrices: Sequence[Tensor]) -> Tensor:
        re, im = state
        values = state.new_zeros(())
        for flip, real, imag, partner in self.flips:
            if flip == 0:
                values = values + real @ (re * re + im * im)
                continue
            other_re, other_im = state[:, partner]
            values = values + real @ (other_re * re + other_im * im)
            values = values - imag @ (other_re * im - other_im * re)
        return values
