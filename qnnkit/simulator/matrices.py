"""One real matrix per block, built from the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from qnnkit.simulator.array_api import Array, xp
from qnnkit.simulator.fusion import Block
from qnnkit.simulator.gates import EXACT, real_form

Saved = list[tuple[Array, list[Array]]]
"""For each matrix, its factors and running products."""


@dataclass
class Chain:
    """The constants of one block's matrix, each (2 d, 2 d)."""

    first: Array
    """K_0, limited to the block's columns; the whole product if no angle occurs."""
    cosine: Array
    """Real forms of K_(j-1) for each j; `sine` holds those of -i K_(j-1)."""
    sine: Array
    last: Array | None
    """K_m; None if it is the identity."""


class Matrices:
    """Matrices of blocks, K_m D_m ... K_1 D_1 K_0 with D_j = diag exp(-i rates_j angles).

    All cosines and sines come from one matrix product. The backward pass costs as much as the forward pass:
    with P_j = D_j K_(j-1) P_(j-1), the gradient of an angle is sum_columns (re g)(im P_j) - (im g)(re P_j). A
    block at the start of a circuit acts on real features. Its matrix is the left half of the real form, and
    so are its running products.

    Args:
        blocks: The blocks.
        matrix: Matrix of shape (n_vector, n_angles): angles = vector @ matrix + offset.
        offset: Offset of shape (n_angles,).
        put: Converts an array to a tensor.
    """

    def __init__(
        self, blocks: Sequence[Block], matrix: np.ndarray, offset: np.ndarray, put: Callable[[Any], Tensor]
    ):
        self.chains: list[Chain] = []
        tables, halves = [np.zeros((0, len(offset)))], [np.zeros((0, len(offset)))]
        for block in blocks:
            constants, rates = block.chain(len(offset))
            forms, turned = real_form(constants), real_form(-1j * constants)
            last = None if np.abs(forms[-1] - np.eye(len(forms[-1]))).max() < EXACT else put(forms[-1])
            first = put(forms[0][:, : block.n_columns])
            self.chains.append(Chain(first, put(forms[:-1]), put(turned[:-1]), last))
            halves += [*rates]
            tables += [each for each in rates for _ in range(2)]
        table = np.concatenate(tables)  # the same angles for real and imaginary parts
        self.by_vector = table @ matrix.T
        self.rates, self.offset = put(self.by_vector), put(table @ offset)
        self.back = put((np.concatenate(halves) @ matrix.T).T)

    def forward(self, vector: Array) -> tuple[list[Array], Saved]:
        """The matrix of each block, of shape (2 d, n_columns), and what the backward pass needs."""
        angles, done, saved = self.offset + self.rates @ vector, 0, []
        cosine, sine = xp(angles).cos(angles), xp(angles).sin(angles)
        for chain in self.chains:
            factors, products, m = None, [chain.first], len(chain.cosine)
            if m:
                part = slice(done, done := done + m * chain.cosine.shape[1])
                factors = chain.cosine * cosine[part].reshape(m, -1, 1)
                factors += chain.sine * sine[part].reshape(m, -1, 1)
                products = [factors[0][:, : chain.first.shape[1]]]
                for factor in factors[1:]:
                    products.append(factor @ products[-1])
                if chain.last is not None:
                    products.append(chain.last @ products[-1])
            saved.append((factors, products))
        return [products[-1] for _, products in saved], saved

    def backward(self, gradients: Sequence[Array], saved: Saved) -> Array:
        """The gradient of the vector, from those of the blocks' matrices."""
        to_rows = [self.offset[:0]]
        for chain, gradient, (factors, products) in zip(self.chains, gradients, saved, strict=True):
            if factors is None:
                continue
            size = factors.shape[-1] // 2
            if chain.last is not None:
                gradient, products = chain.last.T @ gradient, products[:-1]
            product = xp(gradient).concatenate(products).reshape(len(factors), *gradient.shape)
            to_product = xp(product).empty_like(product)
            to_product[-1] = gradient
            for j in range(len(factors) - 1, 0, -1):
                xp(product).matmul(factors[j].T, to_product[j], out=to_product[j - 1])
            # d re / d angle = im, d im / d angle = -re, row by row
            to_angles = to_product[:, :size] * product[:, size:]
            to_angles -= to_product[:, size:] * product[:, :size]
            to_rows.append(to_angles.sum(-1).reshape(-1))
        return self.back @ (to_rows[-1] if len(to_rows) < 3 else xp(self.offset).concatenate(to_rows))
