"""Quantum functions that read nothing but their arguments and constants: those need to run only once.

The rule is a closed list and never clever. Every name in the code has to be one of these: an operator or a
measurement of PennyLane, a listed function, a number or a tuple of numbers, a plain module that leads to one
of these, a listed attribute of tensors, or another such function. What a name stands for is compared at every
call.
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
import types
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.measurements import MeasurementProcess
from pennylane.operation import Operator

from qnnkit import circuits
from qnnkit.simulator.affine import names
from qnnkit.simulator.structure import is_pennylanes

CONSTANTS = (int, float, complex, str, bool, type(None), range, slice, type(...))
BUILTINS = [
    vars(builtins)[name] for name in names("range len enumerate zip reversed list tuple int float sum abs")
]
FUNCTIONS = [
    qp.expval, qp.var, qp.probs, qp.state, qp.adjoint, qp.ctrl, qp.prod,
    *(vars(torch)[name] for name in names("sin cos tan atan arctan tanh sigmoid exp sqrt square stack cat")),
    *(vars(np)[name] for name in names("sqrt arctan arccos arcsin")),
    *(vars(math)[name] for name in names("sqrt atan acos asin log2 ceil floor")),
]  # fmt: skip
LISTED = set(map(id, (*BUILTINS, *FUNCTIONS)))
MODULES: list[Any] = [qp, qp.ops, qp.templates, np, qp.numpy, math, torch]
TENSOR = names(
    "T shape ndim reshape view flatten unsqueeze squeeze sin cos tanh sigmoid sqrt square sum mean"
)
"""Attributes of tensors. Code with `shape`, or with `len`, may depend on the batch size."""
SIZES = {"shape", "len"}
ABSENT = object()


class NotPure(Exception):
    """A name that is not on the list."""


class Names:
    """What all names of a quantum function stand for, as they are now.

    Args:
        function: The quantum function.

    Raises:
        NotPure: A name is not on the list.
    """

    def __init__(self, function: Any):
        self.dicts: list[tuple[dict, str, Any]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.lists: list[tuple[list, list]] = []
        self.reads_sizes, self._known = False, set()
        self._value(function)
        self._columns = [
            list(zip(*each, strict=True)) or [(), (), ()] for each in (self.dicts, self.attributes)
        ]

    def hold(self) -> bool:
        """Whether each name still stands for the same object; about a microsecond."""
        (dicts, keys, values), (owners, fields, contents) = self._columns
        absent = itertools.repeat(ABSENT)
        return (
            all(map(operator.is_, map(dict.get, dicts, keys, absent), values))
            and all(map(operator.is_, map(getattr, owners, fields, absent), contents))
            and all(len(a) == len(b) and all(map(operator.is_, a, b)) for a, b in self.lists)
        )

    def _value(self, value: Any) -> None:
        """Accepts a value, or raises."""
        kind = type(value)
        if kind in CONSTANTS or id(value) in self._known:
            return
        self._known.add(id(value))
        if kind is tuple or kind is list:
            if not {type(each) for each in value} <= {*CONSTANTS, tuple}:
                raise NotPure(f"a {kind.__name__} of other things than numbers")
            for each in value if tuple in set(map(type, value)) else ():
                self._value(each)
            if kind is list:
                self.lists.append((value, list(value)))
        elif kind is types.FunctionType and id(value) not in LISTED:
            self._function(value)
        elif (
            isinstance(value, type)
            and issubclass(value, Operator | MeasurementProcess)
            and is_pennylanes(value)
        ):
            self.attributes.append((value, "__init__", value.__init__))
        elif kind is functools.partial and _is_kits(value.func):
            for part in (value.func, value.args, *value.keywords.values()):
                self._value(part)
        elif id(value) not in LISTED:
            raise NotPure(f"a {kind.__name__}")

    def _function(self, function: types.FunctionType) -> None:
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.attributes.append((function, name, getattr(function, name)))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(value)
        kits = _is_kits(function)
        modules, left = [], []
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            value = getattr(cell, "cell_contents", ABSENT)
            self.attributes.append((cell, "cell_contents", value))
            if not kits or type(value) in (types.FunctionType, functools.partial):
                modules += self._accepted(value, name)
        for name in _names(function.__code__):
            value = self._looked_up(
                vars(builtins) if _is_missing(function, name) else function.__globals__, name
            )
            if _is_missing(function, name):  # where a global of that name would come first
                self.dicts.append((function.__globals__, name, ABSENT))
            if value is ABSENT:
                left.append(name)
            elif not kits or _is_kits(value):  # else trusted, and compared
                modules += self._accepted(value, name)
        self.reads_sizes |= not kits and bool(SIZES & set(_names(function.__code__)))
        if kits:  # trusted as a module
            return
        for module in (looked := list(dict.fromkeys(modules))):  # grows on the way
            for name in _names(function.__code__):
                if (value := self._looked_up(vars(module), name)) is not ABSENT:
                    more = self._accepted(value, name, of_user=module not in MODULES)
                    looked += [each for each in more if each not in looked]
                    left = [each for each in left if each != name]
        if unknown := set(left) - TENSOR:
            raise NotPure(f"`{min(unknown)}`")

    def _looked_up(self, holder: Any, name: str) -> Any:
        value = holder.get(name, ABSENT)
        if value is not ABSENT:
            self.dicts.append((holder, name, value))
        return value

    def _accepted(self, value: Any, name: str, *, of_user: bool = False) -> list[Any]:
        """Accepts what a name stands for; the module, if it is one, whose attributes are to be looked at."""
        if isinstance(value, types.ModuleType):
            plain = type(value) is types.ModuleType and "__getattr__" not in vars(value)
            root = value.__name__.partition(".")[0]
            if value not in MODULES and (not plain or root in ("torch", "numpy", "pennylane", "scipy")):
                raise NotPure(f"`{name}`")
            return [value]
        if of_user and type(value) not in CONSTANTS:
            raise NotPure(f"`{name}`")
        self._value(value)
        return []


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes in a function, and in functions inside it."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _is_missing(function: types.FunctionType, name: str) -> bool:
    return name not in function.__globals__


def _is_kits(function: Any) -> bool:
    return type(function) is types.FunctionType and function.__globals__ is vars(circuits)
