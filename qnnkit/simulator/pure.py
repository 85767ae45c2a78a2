"""Quantum functions that read only their arguments and constants, and so need to run only once.

The rule is a closed list. Every name in the code must be an operator or measurement of PennyLane, a listed
function, a number or a tuple of numbers, a plain module that leads to one of these, a listed attribute of
tensors, or another such function. What each name refers to is compared at every call.
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import functools
import math
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.measurements import MeasurementProcess
from pennylane.operation import Operator

from qnnkit import circuits
from qnnkit.simulator.circuit import names
from qnnkit.simulator.queueing import is_pennylanes

CONSTANTS = (int, float, complex, str, bool, type(None), range, slice, type(...))
FUNCTIONS = [
    qp.expval, qp.var, qp.probs, qp.state, qp.adjoint, qp.ctrl, qp.prod, qp.exp,
    *map(vars(builtins).get, names("range len enumerate zip reversed list tuple int float sum abs")),
    torch.range, torch.sum, torch.abs,  # builtins have functions of these names, too
    *map(vars(torch).get, names("sin cos tan atan arctan tanh sigmoid exp sqrt square stack cat")),
    *map(vars(np).get, names("sqrt arctan arccos arcsin")),
    *map(vars(math).get, names("sqrt atan acos asin log2 ceil floor")),
]  # fmt: skip
LISTED = set(map(id, FUNCTIONS))
MODULES: list[Any] = [qp, qp.ops, qp.templates, np, qp.numpy, math, torch]
TENSOR = names(
    "T shape ndim reshape view flatten unsqueeze squeeze sin cos tanh sigmoid sqrt square sum mean"
)
"""Attributes of tensors. Code with `shape`, or with `len`, may depend on the batch size."""
LIBRARIES = {"torch", "numpy", "pennylane", "scipy"}
"""Libraries whose other modules hold no constants of the user's."""
ABSENT = object()


class NotPure(Exception):
    """A name is not on the list."""


class Names:
    """What all names in a quantum function refer to at present.

    Args:
        function: The quantum function.
        transforms: Transforms of PennyLane, whose arguments may be functions, too.

    Raises:
        NotPure: A name is not on the list.
    """

    def __init__(self, function: Any, transforms: Iterable[Any] = ()):
        self._getters: list[Callable[[], Any]] = []
        self._values: list[Any] = []
        self.reads_sizes, self._accepted = False, set()
        self._accept(function, "self" if isinstance(function, types.MethodType) else type(function).__name__)
        for each in transforms:
            for value in (*each.args, *each.kwargs.values()):
                self._accept(value, each.tape_transform.__name__)

    def hold(self) -> bool:
        """Whether each name still refers to the same object; takes about a microsecond."""
        return all(map(operator.is_, map(operator.call, self._getters), self._values))

    def _read(self, get: Callable[..., Any], holder: Any, name: str) -> Any:
        """What a name refers to, which `hold` compares from now on."""
        self._getters.append(functools.partial(get, holder, name, ABSENT))
        self._values.append(self._getters[-1]())
        return self._values[-1]

    def _accept(self, value: Any, name: str) -> None:
        """Accepts what a name refers to, or raises NotPure."""
        kind, parts = type(value), ()
        if value is ABSENT or kind in CONSTANTS or id(value) in LISTED or id(value) in self._accepted:
            return
        self._accepted.add(id(value))
        if kind is tuple:
            parts = value
        elif kind is functools.partial and getattr(value.func, "__globals__", None) is vars(circuits):
            parts = value.func, *value.args, *value.keywords.values()
        elif kind is circuits.Circuit:
            parts = value.function, value.layers, value.embeds
        elif kind is types.FunctionType and (value.__module__ or "").partition(".")[0] in LIBRARIES:
            raise NotPure(f"`{name}`")  # by the name that the user wrote, not one inside
        elif kind is types.FunctionType and vars(value).keys() <= {"__wrapped__"}:  # else it may read these
            self._function(value)
        elif not (
            isinstance(value, type)
            and issubclass(value, Operator | MeasurementProcess)
            and is_pennylanes(value)
        ):
            raise NotPure(f"`{name}`")
        for part in parts:
            self._accept(part, name)

    def _function(self, function: types.FunctionType) -> None:
        code, outside = function.__code__, function.__globals__
        kits = outside is vars(circuits)  # trusted, except for the defaults and closures of its functions
        names = () if kits else _names(code)
        self.reads_sizes |= not {"shape", "len"}.isdisjoint(names)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._read(getattr, function, name)
        defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
        pairs = [(function.__name__, value) for value in defaults]
        for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True):
            pairs.append((name, self._read(getattr, cell, "cell_contents")))
        for name in names:
            value = self._read(dict.get, outside, name)
            pairs.append((name, self._read(dict.get, vars(builtins), name) if value is ABSENT else value))
        unresolved, modules = {name for name, value in pairs if value is ABSENT}, []
        for name, value in pairs:  # grows on the way
            if not isinstance(value, types.ModuleType):
                self._accept(value, name)
            elif value not in modules:
                modules.append(value)
                for each in _read_from(value, name, names):
                    unresolved.discard(each)
                    pairs.append((each, self._read(dict.get, vars(value), each)))
        if unknown := unresolved - TENSOR:
            raise NotPure(f"`{min(unknown)}`")


def _read_from(module: types.ModuleType, name: str, names: Sequence[str]) -> list[str]:
    """The names that occur in a module: one of `MODULES`, or a user's module if all are constants."""
    inside = [each for each in names if each in vars(module)]
    if module not in MODULES:
        is_plain = type(module) is types.ModuleType and "__getattr__" not in vars(module)
        kinds = {type(vars(module)[each]) for each in inside} - {*CONSTANTS, types.ModuleType}
        if kinds or not is_plain or module.__name__.partition(".")[0] in LIBRARIES:
            raise NotPure(f"`{name}`")
    return inside


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes in a function and in functions nested in it."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
