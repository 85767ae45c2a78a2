"""A `QuantumLayer` inside `torch.compile`: one opaque operation of the graph, forward and backward.

The compiler sees neither the QNode's Python nor the program: both run as they do without it. What a backward
pass needs is kept from the forward pass, for the last of these; for others it is computed again.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from qnnkit.simulator import Fused, as_outside

MOST_PASSES, MOST_BYTES = 1024, 2**28
"""Forward passes kept for the way back, and bytes of their states; the last one whatever its size."""
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_kept: OrderedDict[int, tuple[Tensor, list[Tensor], int]] = OrderedDict()
"""By number: outputs with their graph, its leaves, and bytes of its states."""
_numbers = itertools.count()
_library = torch.library.Library("qnnkit", "DEF")  # not custom_op, whose checks cost 100 us a step
_library.define(
    "circuit(Tensor inputs, Tensor[] weights, int layer, ScalarType dtype, bool keep) -> Tensor[]"
)
_library.define(
    "circuit_backward(Tensor gradient, Tensor number, Tensor inputs, Tensor[] weights, int layer, "
    "ScalarType dtype) -> Tensor[]"
)


@torch.compiler.assume_constant_result
def number_of(layer: torch.nn.Module) -> int:
    """The number by which the operation finds its layer."""
    _layers[id(layer)] = layer
    return id(layer)


def _measured(
    inputs: Tensor, weights: list[Tensor], layer: int, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The outputs with their graph, and its leaves."""
    own = _layers[layer]
    leaves = [each.detach().requires_grad_(each.is_floating_point()) for each in (inputs, *weights)]
    names = own.qnode_weights
    with as_outside(), torch.enable_grad():
        return own._measured(leaves[0], dict(zip(names, leaves[1:], strict=True)), dtype), leaves


@torch.library.impl(_library, "circuit", "CompositeExplicitAutograd")
def _forward(
    inputs: Tensor, weights: list[Tensor], layer: int, dtype: torch.dtype, keep: bool
) -> list[Tensor]:
    """The outputs of a layer, and a number for its way back."""
    number = next(_numbers)
    if keep:
        outputs, leaves = _measured(inputs, weights, layer, dtype)
        _kept[number] = outputs, leaves, math.prod(inputs.shape[:-1]) * _bytes(_layers[layer])
        while len(_kept) > 1 and (len(_kept) > MOST_PASSES or sum(e[2] for e in _kept.values()) > MOST_BYTES):
            _kept.popitem(last=False)
    else:
        own = _layers[layer]
        with as_outside(), torch.no_grad():
            outputs = own._measured(inputs, dict(zip(own.qnode_weights, weights, strict=True)), dtype)
    return [outputs.detach().contiguous(), torch.tensor(number)]


def _bytes(layer: Any) -> int:
    """Of the states of one sample."""
    program = layer._programs and layer._programs.last
    return program.state_bytes * len(program.steps) if isinstance(program, Fused) else 2**16


@torch.library.register_fake("qnnkit::circuit", lib=_library)
def _shapes(inputs: Tensor, weights: list[Tensor], layer: int, dtype: torch.dtype, keep: bool) -> Any:
    with as_outside(), _disable_current_modes(), torch.no_grad():
        own = _layers[layer]
        device = next((weight.device for weight in own._weights().values()), torch.device("cpu"))
        sample = torch.ones(1, inputs.shape[-1], dtype=dtype, device=device)
        one = own._measured(sample, own._weights(), dtype)
    shape = (*inputs.shape[:-1], *one.shape[1:])
    return [inputs.new_empty(shape, dtype=one.dtype), torch.empty((), dtype=torch.int64)]


@torch.library.impl(_library, "circuit_backward", "CompositeExplicitAutograd")
def _backward(
    gradient: Tensor, number: Tensor, inputs: Tensor, weights: list[Tensor], layer: int, dtype: torch.dtype
) -> list[Tensor]:
    """The gradients by inputs and weights."""
    kept = _kept.pop(int(number), None)
    outputs, leaves = _measured(inputs, weights, layer, dtype) if kept is None else kept[:2]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    with as_outside():
        found = iter(torch.autograd.grad(outputs, wanted, gradient, allow_unused=True))
    gradients = [next(found) if leaf.requires_grad else None for leaf in leaves]
    pairs = zip(leaves, gradients, strict=True)
    return [leaf.new_zeros(leaf.shape) if g is None else g.contiguous() for leaf, g in pairs]


@torch.library.register_fake("qnnkit::circuit_backward", lib=_library)
def _like(
    gradient: Any, number: Any, inputs: Any, weights: Any, layer: int, dtype: torch.dtype
) -> list[Tensor]:
    return [each.new_empty(each.shape) for each in (inputs, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    rows, weights, ctx.layer, ctx.dtype, _ = inputs
    ctx.save_for_backward(output[1], rows, *weights)


def _back(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    number, rows, *weights = ctx.saved_tensors
    to_rows, *to_weights = torch.ops.qnnkit.circuit_backward(
        gradients[0], number, rows, weights, ctx.layer, ctx.dtype
    )
    return to_rows, to_weights, None, None, None


torch.library.register_autograd("qnnkit::circuit", _back, setup_context=_save, lib=_library)
circuit: Any = torch.ops.qnnkit.circuit
