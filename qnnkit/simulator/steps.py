"""The steps that act on a batch of states, each with its backward pass.

A state is (2 * 2**n_wires, batch): real, then imaginary parts, by basis state (wire 0 most significant).
Steps with `by_hand` also take a batch in chunks, (chunks, 2 * 2**n_wires, batch), one per core at a time.
`run` is plain torch, which autograd, functional transforms and compilers can trace. `forward` and `backward`
are the same step and its hand-written gradient, with fewer operations and fewer passes over memory. In steps
with `by_hand` they take tensors or NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qnnkit.simulator.array_api import Array, add_product, empty, outer, picked, product, xp


class Affine(NamedTuple):
    """angles = table @ columns + offset."""

    table: Array
    offset: Array
    rows: Array | None = None
    """Indices of the columns' rows that it reads; None for all."""

    def __call__(self, columns: Array) -> Array:
        columns = columns if self.rows is None else picked(columns, self.rows)
        if not isinstance(columns, Tensor):
            return self.table @ columns + self.offset
        if columns.ndim == 2:
            return torch.addmm(self.offset, self.table, columns)
        return torch.baddbmm(self.offset, self.table.expand(len(columns), -1, -1), columns)


class Gradients:
    """Gradients with respect to columns and matrices, summed over the steps.

    Args:
        columns: The columns; None if their gradient is not needed.
        matrices: The matrices' gradients so far; None if they are not needed.
    """

    def __init__(self, columns: Array | None, matrices: list[Any] | None):
        self.of, self.columns, self.matrices = columns, None, matrices

    def add_columns(self, gradient: Array) -> None:
        if self.columns is not None:
            gradient += self.columns
        self.columns = gradient

    def add_angles(self, gradient: Array, angles: Affine) -> None:
        gradient = product(angles.table.T, gradient)
        if angles.rows is not None:
            full = xp(gradient).zeros_like(self.of)
            full[..., angles.rows, :] = gradient
            gradient = full
        self.add_columns(gradient)

    def add_matrix(self, block: int, gradient: Array) -> None:
        assert self.matrices is not None
        if self.matrices[block] is not None:
            gradient += self.matrices[block]
        self.matrices[block] = gradient


class Step:
    """A step whose gradient autograd computes; frequent steps override this with hand-written gradients."""

    blocks: Sequence[int] = ()
    """Indices of the matrices that it uses."""
    by_hand = False

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """The new state.

        Args:
            state: The old state; None at the start.
            columns: Inputs, or their angles, of shape (n, batch).
            matrices: Matrices of all blocks in real form, each of shape (2 d, 2 d).
        """
        raise NotImplementedError

    def forward(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """The new state, and what the backward pass needs."""
        leaves = [columns, *(matrices[i] for i in self.blocks), *([] if state is None else [state])]
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        given = dict(zip(self.blocks, leaves[1:], strict=False))
        with torch.enable_grad():
            result = self.run(None if state is None else leaves[-1], leaves[0], given)  # pyright: ignore
        return result.detach(), (result, leaves)

    def backward(
        self, gradient: Tensor, saved: Any, matrices: Sequence[Tensor], to: Gradients
    ) -> Tensor | None:
        """Adds to the gradients of columns and matrices; returns the gradient of the old state."""
        result, leaves = saved
        to_columns, *gradients = torch.autograd.grad(result, leaves, gradient, allow_unused=True)
        if to_columns is not None and to.of is not None:
            to.add_columns(to_columns)
        for block, to_matrix in zip(self.blocks, gradients, strict=False) if to.matrices is not None else ():
            to.add_matrix(block, to_matrix)
        return gradients[-1] if len(gradients) > len(self.blocks) else None


# --- the start ------------------------------------------------------------------------------------


class Start(Step):
    """The product state of an embedding on |0...0> after each cell's first block.

    Args:
        waves: Angles whose cosines and sines are the features, if any.
        n_waves: Number of waves of each cell.
    """

    def __init__(self, waves: Affine | None, n_waves: Sequence[int]):
        self.waves, self.n_waves, self.blocks = waves, n_waves, range(len(n_waves))

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        angles = columns.new_zeros(0, 1) if self.waves is None else self.waves(columns)
        features = torch.stack([angles.cos(), angles.sin()])
        for i, mine in enumerate(features.split(list(self.n_waves), 1)):
            cell = matrices[i] @ mine.flatten(0, 1) if self.n_waves[i] else matrices[i]
            state = cell if state is None else _complex_outer(state, cell)
        return state


class StartOfOneCell(Start):
    """A `Start` with an embedding and a single cell, with a hand-written gradient."""

    by_hand = True
    waves: Affine

    def forward(self, state: Any, columns: Array, matrices: Sequence[Array]) -> tuple[Array, Any]:
        angles = self.waves(columns)
        n = angles.shape[-2]
        features = empty(angles, 2 * n)
        xp(angles).cos(angles, out=features[..., :n, :])
        xp(angles).sin(angles, out=features[..., n:, :])
        return product(matrices[0], features), features

    def backward(self, gradient: Array, saved: Any, matrices: Sequence[Array], to: Gradients) -> None:
        if to.matrices is not None:
            to.add_matrix(0, outer(gradient, saved))
        if to.of is not None:  # d cos = -sin, d sin = cos, for the same angle
            to_cosine, to_sine = halves(product(matrices[0].T, gradient))
            cosine, sine = halves(saved)
            to_waves = to_sine * cosine
            add_product(to_waves, to_cosine, sine, -1)
            to.add_angles(to_waves, self.waves)


def _complex_outer(a: Tensor, b: Tensor) -> Tensor:
    """The product state of (2 m, batch) and (2 n, batch), of shape (2 m n, batch)."""
    a_re, a_im = a.unflatten(0, (2, -1, 1))
    b_re, b_im = b.unflatten(0, (2, 1, -1))
    return torch.stack([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re]).flatten(0, 2)


class Given(Step):
    """A given initial state, whose amplitudes are the last rows of the columns.

    Args:
        index: For each of these rows, its row in the state.
        n_rows: Number of rows of a state.
    """

    def __init__(self, index: Tensor, n_rows: int):
        self.index, self.n_rows = index, n_rows

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        rows = columns[len(columns) - len(self.index) :]
        return rows.new_zeros(self.n_rows, rows.shape[1]).index_copy(0, self.index, rows)


# --- phases ---------------------------------------------------------------------------------------


class Phases(Step):
    """Multiplies each sample's state by exp(-i angles), with angles of shape (2**n_wires, batch)."""

    by_hand = True

    def __init__(self, angles: Affine):
        self.angles = angles

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        angles = self.angles(columns)
        return turned(state, angles.cos(), angles.sin())

    def forward(self, state: Array, columns: Array, matrices: Sequence[Array]) -> tuple[Array, Any]:
        angles = self.angles(columns)
        cosine, sine = xp(angles).cos(angles), xp(angles).sin(angles)
        new = _turn(state, cosine, sine, 1)
        return new, (new, cosine, sine, state.shape[-1])

    def backward(self, gradient: Array, saved: Any, matrices: Sequence[Array], to: Gradients) -> Array:
        new, cosine, sine, width = saved
        if to.of is not None:  # d re / d angle = im, d im / d angle = -re, both of the new state
            (to_re, to_im), (re, im) = halves(gradient), halves(new)
            to_angles = to_re * im
            add_product(to_angles, to_im, re, -1)
            to.add_angles(to_angles, self.angles)
        to_state = _turn(gradient, cosine, sine, -1)
        return to_state if width == to_state.shape[-1] else to_state.sum(-1)[:, None]


def halves(state: Array) -> tuple[Array, Array]:
    """Real and imaginary parts of a state."""
    n = state.shape[-2] // 2
    return state[..., :n, :], state[..., n:, :]


def turned(state: Array, cosine: Array, sine: Array) -> Array:
    """The state times cosine - i sine."""
    re, im = halves(state)
    return xp(state).concatenate([re * cosine + im * sine, im * cosine - re * sine], axis=-2)


def _turn(state: Array, cosine: Array, sine: Array, sign: int) -> Array:
    """The state times cosine - sign i sine, without temporary copies."""
    new = empty(cosine, state.shape[-2])
    (re, im), (new_re, new_im) = halves(state), halves(new)
    for mine, other, result, direction in ((re, im, new_re, sign), (im, re, new_im, -sign)):
        xp(state).multiply(mine, cosine, out=result)
        add_product(result, other, sine, direction)
    return new


# --- permutations ---------------------------------------------------------------------------------


class Permutation(Step):
    """new[i] = exp(-i angles[i]) * old[index[i]], over basis states.

    Args:
        index: Permutation of a state's rows, (2 * 2**n_wires,).
        inverse: The inverse permutation.
        angles: Angles of shape (2**n_wires, 1), or None if no phase changes.
    """

    by_hand = True

    def __init__(self, index: Tensor, inverse: Tensor, angles: Tensor | None):
        self.index, self.inverse = index, inverse
        self.turns: Any = None if angles is None else (angles.cos(), angles.sin())

    def run(self, state: Any, columns: Array, matrices: Sequence[Array]) -> Array:
        state = picked(state, self.index)
        return state if self.turns is None else turned(state, *self.turns)

    def forward(self, state: Array, columns: Array, matrices: Sequence[Array]) -> tuple[Array, Any]:
        return self.run(state, columns, matrices), None

    def backward(self, gradient: Array, saved: Any, matrices: Sequence[Array], to: Gradients) -> Array:
        if self.turns is not None:
            gradient = turned(gradient, self.turns[0], -self.turns[1])
        return picked(gradient, self.inverse)


# --- blocks ---------------------------------------------------------------------------------------


class Block(Step):
    """A matrix on neighbouring wires.

    Args:
        block: Index of the matrix.
        before: Number of basis states of the wires before the block.
        size: Number of basis states of the block's wires.
        whole: Whether the block acts on all wires.
    """

    def __init__(self, block: int, before: int, size: int, *, whole: bool):
        self.block, self.before, self.size, self.whole = block, before, size, whole
        self.by_hand = whole  # other blocks use torch's batched products

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        if self.whole:
            return product(matrices[self.block], state)
        a, b, re, im = self._split(matrices[self.block], state)
        return torch.stack([a @ re - b @ im, b @ re + a @ im]).view(state.shape)

    def forward(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return self._apply(matrices[self.block], state), state

    def backward(self, gradient: Tensor, saved: Any, matrices: Sequence[Tensor], to: Gradients) -> Tensor:
        if to.matrices is not None:
            to.add_matrix(self.block, self._outer(gradient, saved))
        return self._apply(matrices[self.block].T, gradient)

    def _split(self, matrix: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Real and imaginary parts of the matrix, (before, d, d), and of the state, (before, d, others)."""
        parts = matrix[:, : self.size].unflatten(0, (2, self.size))
        a, b = (part.expand(self.before, -1, -1) for part in parts)
        re, im = state.reshape(2, self.before, self.size, -1)
        return a, b, re, im

    def _apply(self, matrix: Tensor, state: Tensor) -> Tensor:
        if self.whole:
            return product(matrix, state)
        a, b, re, im = self._split(matrix, state)
        new = state.new_empty(state.shape)
        new_re, new_im = new.view(2, *re.shape)
        torch.bmm(a, re, out=new_re).baddbmm_(b, im, alpha=-1)
        torch.bmm(b, re, out=new_im).baddbmm_(a, im)
        return new

    def _outer(self, gradient: Tensor, state: Tensor) -> Tensor:
        if self.whole:
            return outer(gradient, state)
        re, im = state.reshape(2, self.before, self.size, -1).transpose(2, 3)
        to_re, to_im = gradient.reshape(2, self.before, self.size, -1)
        # Only the left half of the real form is read above: the right half repeats it.
        top = torch.bmm(to_re, re).baddbmm_(to_im, im).sum(0)
        below = torch.bmm(to_im, re).baddbmm_(to_re, im, alpha=-1).sum(0)
        return torch.cat([torch.cat([top, below]), top.new_zeros(2 * self.size, self.size)], 1)


# --- the end --------------------------------------------------------------------------------------


class Weigh(Step):
    """Expectation values of diagonal observables: table @ |state|^2, of shape (n_columns, batch).

    Args:
        table: Diagonals of shape (n_columns, 2**n_wires).
    """

    by_hand = True

    def __init__(self, table: Tensor):
        self.table, self.twice = table, 2 * table.T

    def run(self, state: Any, columns: Array, matrices: Sequence[Array]) -> Array:
        re, im = halves(state)
        squares = torch.addcmul(re * re, im, im) if isinstance(re, Tensor) else re * re + im * im
        return product(self.table, squares)

    def forward(self, state: Array, columns: Array, matrices: Sequence[Array]) -> tuple[Array, Any]:
        return self.run(state, columns, matrices), state

    def backward(self, gradient: Array, saved: Any, matrices: Sequence[Array], to: Gradients) -> Array:
        both = saved.reshape(*saved.shape[:-2], 2, saved.shape[-2] // 2, saved.shape[-1])
        return (product(self.twice, gradient)[..., None, :, :] * both).reshape(saved.shape)


class Correlate(Step):
    """Expectation values of arbitrary Pauli words, grouped by the bits they flip (see `Readout`).

    Args:
        flips: (real, imag, partner) per flip: tables (n_columns, 2**n_wires), and i ^ flip for each i.
    """

    def __init__(self, flips: Sequence[tuple[Tensor, Tensor, Tensor]]):
        self.flips = flips

    def run(self, state: Any, columns: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        (re, im), values = state.chunk(2), state.new_zeros(())
        for real, imag, partner in self.flips:
            other_re, other_im = re.index_select(0, partner), im.index_select(0, partner)
            values = values + real @ (other_re * re + other_im * im)
            values = values - imag @ (other_re * im - other_im * re)
        return values
