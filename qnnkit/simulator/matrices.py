"""One real matrix per block, built from the weights: all blocks of a size in a few operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator.array_api import Array, stacked, xp
from qnnkit.simulator.fusion import Block
from qnnkit.simulator.gates import EXACT, real_form

Saved = list[tuple[Array, list[Array]]]
"""For each group of matrices: its factors, and the running products."""


@dataclass
class Group:
    """Chains of matrices of one size, (n, 2 d, 2 d), or (2 d, 2 d) where there is only one."""

    members: list[int]
    """Numbers of the blocks."""
    shape: tuple[int, ...]
    """Of the angles: (m, n, 2 d, 1) or (m, 2 d, 1)."""
    width: int
    """Number of columns of the product."""
    first: Array
    """K_0, its columns only; the product where nothing turns."""
    cosine: Array
    """The real form of K_(j-1), for each j; `sine` that of -i K_(j-1)."""
    sine: Array
    last: Array | None
    """K_m, unless it is 1."""


class Matrices:
    """Matrices of blocks, K_m D_m ... K_1 D_1 K_0 with D_j = diag exp(-i rates_j angles), grouped by size.

    All factors D_j K_(j-1) come from one matrix product, one cosine and one sine, and are multiplied one
    after the other, for all blocks of a group at once. The way back is as long as the way there: with
    P_j = D_j K_(j-1) P_(j-1) the gradient of an angle is sum_columns (re g)(im P_j) - (im g)(re P_j). A block
    at the start of a circuit acts on real features: its matrix is the left half of the real form, and so are
    its running products.

    Args:
        blocks: The blocks.
        matrix: Of shape (n_vector, n_angles): angles = vector @ matrix + offset.
        offset: Of shape (n_angles,).
        put: Makes a tensor of an array.
    """

    def __init__(
        self, blocks: Sequence[Block], matrix: np.ndarray, offset: np.ndarray, put: Callable[[Any], Tensor]
    ):
        chains = [(*block.chain(len(offset)), block.n_columns) for block in blocks]
        self.groups: list[Group] = []
        tables, halves = [np.zeros((0, len(offset)))], [np.zeros((0, len(offset)))]
        for size, width in sorted({(k.shape[1], width) for k, _, width in chains}):
            where = [i for i, (k, _, n) in enumerate(chains) if (k.shape[1], n) == (size, width)]
            longest = max(len(chains[i][1]) for i in where)
            factors = np.tile(np.eye(size, dtype=complex), (longest + 1, len(where), 1, 1))
            rates = np.zeros((longest, len(where), size, len(offset)))
            for row, i in enumerate(where):
                k, table, _ = chains[i]
                # the last factor comes last, whatever the number of those before it
                factors[: len(k) - 1, row], rates[: len(table), row] = k[:-1], table
                factors[-1 if len(k) > 1 else 0, row] = k[-1]
            factors = factors[:, 0] if len(where) == 1 else factors
            forms, turned = real_form(factors), real_form(-1j * factors)
            shape = longest, *factors.shape[1:-2], 2 * size, 1
            last = None if np.abs(forms[-1] - np.eye(2 * size)).max() < EXACT else put(forms[-1])
            first = put(forms[0][..., :width])
            self.groups.append(Group(where, shape, width, first, put(forms[:-1]), put(turned[:-1]), last))
            n_rows = longest * len(where) * size
            halves.append(rates.reshape(n_rows, len(offset)))
            tables.append(np.concatenate([rates, rates], 2).reshape(2 * n_rows, len(offset)))
        table = np.concatenate(tables)  # the same angles for real and for imaginary parts
        self.by_vector = table @ matrix.T
        self.rates, self.offset = put(self.by_vector), put(table @ offset)
        self.back = put((np.concatenate(halves) @ matrix.T).T)

    def forward(self, vector: Array) -> tuple[list[Array], Saved]:
        """The matrix of each block, of shape (2 d, n_columns), and what the way back needs."""
        angles, done, found = self.offset + self.rates @ vector, 0, {}
        saved: Saved = []
        for group in self.groups:
            factors, products = None, [group.first]
            if group.shape[0]:
                part = angles[done : (done := done + math.prod(group.shape))].reshape(group.shape)
                factors = group.cosine * xp(part).cos(part)
                factors += group.sine * xp(part).sin(part)
                products = [factors[0][..., : group.width]]
                for factor in factors[1:]:
                    products.append(factor @ products[-1])
                if group.last is not None:
                    products.append(group.last @ products[-1])
            saved.append((factors, products))
            found |= zip(
                group.members, products[-1] if len(group.members) > 1 else products[-1:], strict=True
            )
        return [found[i] for i in range(len(found))], saved

    def backward(self, gradients: Sequence[Array], saved: Saved) -> Array:
        """The gradient of the vector, from those of the blocks' matrices."""
        to_rows = [self.offset[:0]]
        for group, (factors, products) in zip(self.groups, saved, strict=True):
            if factors is None:
                continue
            flowing, size = [gradients[i] for i in group.members], factors.shape[-1] // 2
            gradient = stacked(flowing) if len(flowing) > 1 else flowing[0]
            if group.last is not None:
                gradient, products = group.last.swapaxes(-1, -2) @ gradient, products[:-1]
            to_products = [gradient]
            for j in range(len(factors) - 1, 0, -1):
                to_products.append(factors[j].swapaxes(-1, -2) @ to_products[-1])
            # d re / d angle = im, d im / d angle = -re, row by row
            product, to_product = stacked(products), stacked(to_products[::-1])
            to_angles = to_product[..., :size, :] * product[..., size:, :]
            to_angles -= to_product[..., size:, :] * product[..., :size, :]
            to_rows.append(to_angles.sum(-1).reshape(-1))
        return self.back @ (to_rows[-1] if len(to_rows) < 3 else xp(self.offset).concatenate(to_rows))


class OverArrays:
    """Matrices built over NumPy arrays, for states in torch: most of their time is starting them."""

    def __init__(self, matrices: Matrices):
        """
        Args:
            matrices: Over NumPy arrays.
        """
        self.matrices = matrices

    def forward(self, vector: Tensor) -> tuple[list[Tensor], Saved]:
        found, saved = self.matrices.forward(vector.numpy())
        return [torch.from_numpy(matrix) for matrix in found], saved

    def backward(self, gradients: Sequence[Tensor], saved: Saved) -> Tensor:
        return torch.from_numpy(self.matrices.backward([each.numpy() for each in gradients], saved))
