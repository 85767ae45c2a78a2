"""Operators and measurements as keys of a dictionary: equal keys stand for the same computation.

A key holds everything that decides the result except the numbers in `leaves`: classes, wires, hyperparameters
and constants by value. Objects whose content cannot be read off have no key.
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.measurements import MeasurementProcess
from pennylane.operation import Operator
from torch import Tensor

from qnnkit.simulator.affine import is_wrapped
from qnnkit.simulator.gates import NotFusable

BY_ITSELF = (int, str, bool, bytes, type(None), type, complex, types.BuiltinFunctionType)
"""Types of values that are their own key; a float is not, since nan differs from itself."""
PLAIN_OBSERVABLES = (qp.X, qp.Y, qp.Z, qp.Identity)
METHODS = (
    "__init__", "matrix", "compute_matrix", "decomposition", "compute_decomposition", "eigvals",
    "compute_eigvals", "compute_diagonalizing_gates", "execute", "preprocess_transforms",
    "setup_execution_config",
)  # fmt: skip
"""Methods that decide what an operator, a measurement or a device computes."""


class Unkeyable(Exception):
    """A value whose content cannot be read off."""


def value_key(value: Any) -> Hashable:
    """A value as a key, by content; types count, so that 1, 1.0 and True differ."""
    kind = type(value)
    if kind in BY_ITSELF or isinstance(value, type):
        return kind, value
    if kind is float:
        return kind, repr(value)
    if kind in (tuple, list):
        return kind, *map(value_key, value)
    if kind is dict:
        return kind, *((value_key(k), value_key(v)) for k, v in value.items())
    if kind is qp.wires.Wires:
        return kind, *map(value_key, value.labels)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Tensor):
        return _tensor_key(value)
    if isinstance(value, Operator):
        leaves: list[Any] = []
        return operator_key(value, leaves), *map(value_key, leaves)
    raise Unkeyable(f"a {kind.__name__}")


def _tensor_key(value: Tensor) -> Hashable:
    """The numbers of a constant tensor."""
    if value.requires_grad:
        raise NotFusable("a constant of it requires a gradient")
    if type(value) not in (Tensor, torch.nn.Parameter) or is_wrapped(value):
        raise Unkeyable("a tensor without numbers")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return value.dtype, tuple(value.shape), plain.view(torch.uint8).numpy().tobytes()


def operator_key(operation: Operator, leaves: list[Any]) -> Hashable:
    """An operator without its numbers, which are appended to `leaves` in the order of `operation.data`."""
    data, metadata = operation._flatten()
    return type(operation), value_key(metadata), *(_part_key(part, leaves) for part in data)


def _part_key(part: Any, leaves: list[Any]) -> Hashable:
    if isinstance(part, Operator):
        return operator_key(part, leaves)
    if isinstance(part, tuple | list):
        return tuple(_part_key(each, leaves) for each in part)
    leaves.append(part)
    return None


def measurement_key(measurement: MeasurementProcess) -> Hashable:
    """A measurement, with the numbers of its observable."""
    observable = measurement.obs
    if getattr(measurement, "mv", None) is not None:
        raise NotFusable("it measures in the middle of the circuit")
    if observable is not None and type(observable) in PLAIN_OBSERVABLES:
        return type(measurement), type(observable), observable.wires.labels
    known = value_key(observable), value_key(getattr(measurement, "_eigvals", None))
    return type(measurement), *known, measurement.wires.labels


# --- PennyLane's classes, as long as nobody has changed them ----------------------------------------


def is_pennylanes(kind: type) -> bool:
    """Whether a class is PennyLane's own, and so are the methods that decide what it computes."""
    if not kind.__module__.startswith("pennylane"):
        return False
    own = (getattr(getattr(kind, name, None), "__module__", None) for name in METHODS)
    return all(module is None or module.startswith(("pennylane", "builtins")) for module in own)


class Methods:
    """The methods of some classes, as they are now.

    Args:
        kinds: The classes.
    """

    def __init__(self, kinds: Iterable[type]):
        pairs = [(kind, name) for kind in set(kinds) for name in METHODS if hasattr(kind, name)]
        self.kinds, self.names = [kind for kind, _ in pairs], [name for _, name in pairs]
        self.found = list(map(getattr, self.kinds, self.names))

    def hold(self) -> bool:
        """Whether nobody has exchanged one; about a microsecond."""
        return all(
            map(operator.is_, map(getattr, self.kinds, self.names, itertools.repeat(None)), self.found)
        )
