"""Which packages, functions and classes a watch knows, and how their objects are told apart."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import builtins
import collections
import dataclasses
import enum
import fractions
import functools
import gc
import re
import sys
import types
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.transforms.core import BoundTransform, CompilePipeline, Transform

from qnnkit.simulator.graph import names

LARGEST_ARRAY, MOST_VALUES = 4096, 10_000
"""Elements of an array that is compared, and values of one QNode."""

TRUSTED = names(
    "abc autoray cmath collections copy dataclasses enum fractions functools itertools math "
    "networkx numbers numpy operator pennylane re reprlib scipy string sympy torch types typing autograd "
    "contextlib _operator _functools _collections _collections_abc"
)
"""Packages whose functions and classes are known by identity, unless `IMPURE` names them."""
TORCH = names(
    "torch torch.functional torch.nn torch.nn.functional torch.linalg torch.fft torch.special torch.func "
    "torch._C._nn torch._C._linalg torch._C._fft torch._C._special torch._functorch.apis "
    "torch._functorch.eager_transforms"
)
"""The modules of torch whose functions have no state."""
IMPURE = re.compile(
    r"\bis_abstract$|\bsuppress$|(?<!ope)rand(?!om\.RandomLayers$|omLayers$)|empty|memmap|seed|"
    r"^torch\.(.*\.)?(bernoulli|multinomial|normal$|poisson$|binomial|.*dropout|rrelu|gumbel|fractional|multi_head|"
    r"scaled_dot|set_|get_(?!default_dtype)|is_grad|is_inference|is_autocast|is_anomaly|is_warn|is_deterministic|are_|load|save|compile|use_|from_file|default_gen|"
    r"nn\.[A-Z_]|autograd|cuda|backends|jit|export|library|utils|thread|ops|classes|distributed)|"
    r"^(autograd\.)?numpy\.(.*\.)?(load|save|geterr|getbufsize|array2string|array_str|array_repr|from(file|regex|txt)|genfromtxt|set_|get_|seterr|errstate|print|show|put|"
    r"copyto|place|fill_diagonal|nditer|testing|ctypeslib)|"
    r"^pennylane\.(.*\.)?(QNode|qnode|devices?\b|QDrift|shadow|Shadow|classical_shadow|capture|logging|data$|draw|snapshots|"
    r"debug|breakpoint|enable|disable|toggle|workflow|specs|execute|qnn|optimize|concurrency|io\b|add_decomps|register)|"
    r"^dataclasses\.fields|^(scipy\.(stats|io|optimize)|sympy\.testing|networkx\.(read|write)|functools\.(singledispatch|_lru|lru_|cache)|"
    r"types\.(Function|Code|Cell|Frame|Dynamic)|contextlib\.(redirect|chdir))"
)
"""Names, with their modules, of what reads or changes state that nobody can watch."""
BUILTINS = names(
    "abs all any ascii bin callable chr dir divmod format getattr hasattr hex isinstance issubclass iter len "
    "max min next oct ord pow repr round sorted sum vars ellipsis NotImplementedType"
)
"""Built-in functions whose result depends on their arguments only, as that of all built-in types does."""
MAKERS = names("type replace copy deepcopy")
"""Names of what makes objects of a class that no name in the code tells."""
REFLECTION = names(
    "__self__ __func__ __closure__ __code__ __globals__ __builtins__ __defaults__ __kwdefaults__ "
    "cell_contents gi_frame f_locals f_globals f_back __subclasses__ __getattribute__ __reduce__ "
    "__bases__ __mro__ __loader__ __spec__ __set__ __delete__ __setitem__ __delitem__ __delattr__ "
    "bernoulli multinomial __annotations__ __dataclass_fields__ _version"
)
"""Attributes, of whatever object, that no code may use."""
CONSTRUCTORS = names(
    "__init__ __new__ __post_init__ __init_subclass__ __set_name__ __del__ __class_getitem__ __setattr__ "
    "__delattr__ __hash__"
)
"""Special methods that no object runs whose attributes nobody sets; a hash goes with what == compares."""
MAKES_CLASSES = names("types abc enum collections dataclasses typing")
"""Modules whose classes a user's Python may make."""
CACHES = names("_hash _pauli_rep _has_overlapping_wires _overlapping_ops _batch_size _ndim_params _id")
"""Attributes that PennyLane's operators fill in when they are used."""
NOT_READ = names(
    "_abc_impl _primitive __module__ __dict__ __weakref__ __annotations__ __annotate__ "
    "__qualname__ __dataclass_fields__ __dataclass_params__ __abstractmethods__ __orig_bases__ "
    "__parameters__ __static_attributes__ __firstlineno__ __annotations_cache__ __annotate_func__"
)
"""Attributes of a class that tell about it; the second is PennyLane's own, where JAX is installed."""
FIELDS: dict[type, tuple[str, ...] | None] = {
    qp.operation.Operator: None,
    qp.measurements.MeasurementProcess: None,
    qp.wires.Wires: ("_labels",),
    CompilePipeline: ("_compile_pipeline",),
    BoundTransform: ("_transform", "_args", "_kwargs"),
    Transform: ("_tape_transform", "_expand_transform", "_classical_cotransform", "_custom_qnode_transform"),
    collections.ChainMap: ("maps",),
}
"""Classes of libraries whose objects are known by these attributes; None: by all but `CACHES`."""
ATOMS = (
    type(None), bool, int, str, bytes, type(...), type(NotImplemented), types.CodeType, float, complex, range,
    qp.pauli.PauliWord, fractions.Fraction, torch.dtype, torch.device, torch.Size, qp.measurements.Shots,
)  # fmt: skip
"""Classes of values that never change."""
MAPPINGS = dict, types.MappingProxyType
CHANGEABLE = list, set, collections.deque, dict, collections.OrderedDict, collections.Counter
COLLECTIONS = *CHANGEABLE, tuple, frozenset, types.MappingProxyType
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
CONSTANT_OBJECTS = (
    np.ufunc, np.dtype, re.Pattern, enum.Enum, type(dataclasses.MISSING),
    type(dataclasses._HAS_DEFAULT_FACTORY),
    type(vars(collections.namedtuple("_", "x"))["x"]),
)  # fmt: skip
ABSENT = object()


def holds_users(part: Any) -> bool:
    """Whether there is code of the user in what a library's function closes over."""
    if type(part) in (types.MethodType, functools.partial) or is_users_function(part):
        return True
    if isinstance(part, (list, tuple, set, frozenset, dict)):
        return any(map(holds_users, part.values() if isinstance(part, dict) else part))
    if type(part) is types.FunctionType:
        return any(holds_users(cell.cell_contents) for cell in part.__closure__ or ())
    return is_users_class(type(part))


def is_users(module: Any) -> bool:
    """Whether a module's Python is followed: neither a library that is trusted nor the standard library."""
    root = module.partition(".")[0] if type(module) is str else ""
    return root not in TRUSTED and (root == "__main__" or root not in sys.stdlib_module_names)


def is_users_class(kind: type) -> bool:
    """Whether its code is the user's; of a class made at run time, its module does not tell."""
    if not kind.__flags__ & 1 << 9:
        return False
    module = type.__getattribute__(kind, "__module__")
    made = module in MAKES_CLASSES and "." not in kind.__qualname__
    return is_users(module) or (made and vars(sys.modules[module]).get(kind.__qualname__) is not kind)


def is_users_function(value: Any) -> bool:
    if type(value) is not types.FunctionType:
        return False
    name = value.__globals__.get("__name__")
    return is_users(name) or value.__globals__ is not vars(sys.modules.get(str(name), types))


def is_library_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not is_users(value.__name__)


def dict_of(kind: type) -> dict[str, Any]:
    """The dictionary behind the read-only view that a class shows."""
    return gc.get_referents(type.__dict__["__dict__"].__get__(kind))[0]


def is_users_object(value: Any) -> bool:
    """Whether a value is a user's class, or an object of one; or a namespace."""
    kind = value if isinstance(value, type) else type(value)
    return type(value) in NAMESPACES or is_users_class(kind) or is_users_class(type(value))


def is_plain(kind: type) -> bool:
    """Whether the state of a class's objects lies in their attributes, or in their items."""
    own = object, tuple, torch.nn.Module, *NAMESPACES
    modules = "pennylane", "enum", "typing", "abc", "collections.abc", "contextlib"
    bases = [base for base in kind.__mro__ if base not in own and not is_users_class(base)]
    is_open = enum.Enum in bases or all(
        base.__module__ in modules or base.__module__.startswith("pennylane.") for base in bases
    )
    return is_open and not is_users_class(type(kind))


def is_pure(module: str, name: str) -> bool:
    """Whether a name in a module is known to depend on its arguments only."""
    root = module.partition(".")[0]
    if module == "builtins":
        known = name in BUILTINS or isinstance(vars(builtins).get(name), type)
    else:
        known = root in TRUSTED and (root != "torch" or module in TORCH)
    return known and not IMPURE.search(f"{module}.{name}".rstrip("."))
