"""How numbers depend on others: as an affine map, found by running the Python a few times at once.

The Python runs under `torch.vmap`, where looking at a number raises an error. It may only add, multiply,
divide and pick numbers that depend on what it is given, so every result is a quotient of polynomials. If one
is not affine, a random point shows that with probability one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qnnkit.simulator.gates import NotFusable


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


RATIONAL = names(
    "add __add__ __radd__ sub __sub__ __rsub__ rsub mul multiply __mul__ __rmul__ div divide true_divide "
    "__truediv__ __rtruediv__ neg negative __neg__ __pos__ positive matmul __matmul__ __rmatmul__ mm mv dot "
    "inner outer einsum tensordot sum mean cumsum __getitem__ select index_select take gather reshape view "
    "flatten ravel squeeze unsqueeze T mT t transpose swapaxes moveaxis movedim permute stack cat concat "
    "concatenate hstack vstack unbind split chunk tensor_split flip roll repeat tile expand expand_as "
    "broadcast_to clone contiguous to type type_as double zeros_like ones_like full_like new_zeros new_ones "
    "shape size ndim dim numel __len__ __iter__ dtype device layout requires_grad is_sparse is_complex "
    "is_floating_point as_tensor"
)
"""torch's functions and attributes that sum, multiply, divide and pick, or do not look at numbers."""
NOT_AFFINE = "its angles are no sums of multiples of inputs and weights"
POINTS = 4
EXACT = 1e-9
"""Largest deviation that counts as rounding."""


class NotAffine(NotFusable):
    """Something is computed of the numbers that is no sum, product or quotient."""


class _Rational(TorchFunctionMode):
    """Refuses every other function of what vmap runs over."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        name = func.__self__.__name__ if name == "__get__" else name
        if name not in RATIONAL and (_depends(args) or _depends(list((kwargs or {}).values()))):
            raise NotAffine(f"{NOT_AFFINE} (`{name}`)")
        return func(*args, **(kwargs or {}))


is_wrapped: Any = vars(torch._C)["_functorch"].is_functorch_wrapped_tensor
"""Whether a tensor stands for many, or belongs to a transform of torch.func."""


def _depends(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return any(map(_depends, given))
    return isinstance(given, Tensor) and is_wrapped(given)


def affine(function: Callable[[Tensor], Tensor], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix, (n_results, n), and offset, (n_results,), of a function of n numbers; which results are so.

    Args:
        function: From a vector in float64 to another.
        n: Length of the vector.

    Raises:
        NotAffine: It computes something else than sums, products and quotients.
    """
    generator = torch.Generator().manual_seed(0)
    random = 3 * torch.randn(POINTS, n, generator=generator, dtype=torch.float64)
    points = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64), random])
    with _Rational():
        values = torch.func.vmap(function)(points)
    offset, matrix = values[0], (values[1 : n + 1] - values[0]).T
    is_affine = torch.isclose(random @ matrix.T + offset, values[n + 1 :], EXACT, EXACT).all(0)
    return matrix.numpy(), offset.numpy(), is_affine.numpy()
