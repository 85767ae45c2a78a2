"""One real matrix per block, built from the weights: all blocks of a size in a few batched operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator.gates import real_form
from qnnkit.simulator.program import Block
from qnnkit.simulator.steps import Place

Saved = list[tuple[list[Tensor], list[Tensor]]]
"""For each group of matrices: its factors but the first, and the running products of all."""


class Matrices:
    """Matrices of blocks, K_m D_m ... K_1 D_1 K_0 with D_j = diag exp(-i rates_j angles), grouped by size.

    Every factor D_j K_(j-1) is cos * K + sin * K' row by row, with the angles of all rows from one matrix
    product. The factors are then multiplied one after the other, for all blocks of a group at once: the way
    back is as long as the way there, since with P_j = D_j K_(j-1) P_(j-1) the gradient of an angle is
    sum_columns (g re P_j)(im P_j) - (g im P_j)(re P_j).

    Args:
        blocks: The blocks.
        matrix: Of shape (n_vector, n_angles): angles = vector @ matrix + offset.
        offset: Of shape (n_angles,).
    """

    def __init__(self, blocks: Sequence[Block], matrix: np.ndarray, offset: np.ndarray):
        chains, n_angles = [], len(offset)
        for block in blocks:
            constants, rates = block.chain(n_angles)
            chains.append((real_form(constants), np.concatenate([rates, rates], axis=1)))
        self.places: list[Place] = [(0, 0)] * len(blocks)
        """Of each block's matrix: its group, and its row there."""
        self.groups: list[tuple[np.ndarray, np.ndarray]] = []
        tables = []
        for group, size in enumerate(sorted({len(forms[0]) for forms, _ in chains})):
            where = [i for i, (forms, _) in enumerate(chains) if len(forms[0]) == size]
            longest = max(len(chains[i][0]) for i in where)
            factors = np.tile(np.eye(size), (longest, len(where), 1, 1))
            rates = np.zeros((longest, len(where), size, n_angles))
            for row, i in enumerate(where):
                forms, table = chains[i]
                factors[: len(forms), row], rates[: len(forms), row] = forms, table
                self.places[i] = (group, row)
            re, im = np.split(factors, 2, axis=2)
            self.groups.append((factors, np.concatenate([im, -re], axis=2)))
            tables.append(rates.reshape(longest * len(where) * size, n_angles))
        table = np.concatenate([np.zeros((0, len(offset))), *tables])  # a given state may be all there is
        self.rates, self.offset = table @ matrix.T, table @ offset

    def constants(self, put: Callable[[Any], Tensor]) -> Constants:
        """What no weight changes, each array handed to `put`."""
        groups = [(put(cosines), put(sines)) for cosines, sines in self.groups]
        return Constants(groups, put(self.rates), put(self.offset))


class Constants:
    """The matrices as a function of a vector of weights (or of their angles), on one device.

    Args:
        groups: For each size of matrix, K and K' of shape (n_factors, n_blocks, 2 d, 2 d).
        rates: Of every row of every factor, of shape (n_rows, n_vector).
        offset: Of shape (n_rows,).
    """

    def __init__(self, groups: list[tuple[Tensor, Tensor]], rates: Tensor, offset: Tensor):
        self.groups, self.rates, self.offset = groups, rates, offset
        self.rows = [math.prod(k.shape[:3]) for k, _ in groups]

    def _factors(self, vector: Tensor) -> list[Tensor]:
        turned = torch.addmv(self.offset, self.rates, vector)
        rows = zip(turned.cos().split(self.rows), turned.sin().split(self.rows), strict=True)
        return [
            torch.addcmul(cosine.view(*k.shape[:3], 1) * k, sine.view(*k.shape[:3], 1), turned_k)
            for (k, turned_k), (cosine, sine) in zip(self.groups, rows, strict=True)
        ]

    def run(self, vector: Tensor) -> list[Tensor]:
        """For each group, its matrices of shape (n_blocks, 2 d, 2 d); plain torch."""
        found = []
        for factors in self._factors(vector):
            product, *rest = factors
            for factor in rest:
                product = factor @ product
            found.append(product)
        return found

    def forward(self, vector: Tensor) -> tuple[list[Tensor], Saved]:
        """The same without a graph, and what the way back needs: factors and their running products."""
        saved = []
        for factors in self._factors(vector):
            first, *rest = factors.unbind(0)
            products = [first]
            for factor in rest:
                products.append(torch.bmm(factor, products[-1]))
            saved.append((rest, products))
        return [products[-1] for _, products in saved], saved

    def backward(self, gradients: Sequence[Tensor], saved: Saved) -> Tensor:
        """The gradient of the vector."""
        to_rows = []
        for gradient, (factors, products) in zip(gradients, saved, strict=True):
            to_products = [gradient]
            for factor in reversed(factors):
                to_products.append(torch.bmm(factor.mT, to_products[-1]))
            # d re / d angle = im, d im / d angle = -re, row by row
            re, im = torch.stack(products).chunk(2, dim=2)
            to_re, to_im = torch.stack(to_products[::-1]).chunk(2, dim=2)
            to_rows += [(to_re * im).sum(-1), (to_im * re).sum(-1).neg_()]
        pairs = zip(to_rows[0::2], to_rows[1::2], strict=True)
        return self.rates.t() @ torch.cat([torch.cat(pair, dim=2).flatten() for pair in pairs])
