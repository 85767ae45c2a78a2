"""A walk over everything that a QNode's Python can read: functions, and the values that they get hold of."""

# Values are told apart by `type(value)`, which pyright does not follow.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalSubscript=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
from collections.abc import Hashable
from typing import Any

import numpy as np
import pennylane as qp
import torch

from qnnkit.simulator.bytecode import mutates
from qnnkit.simulator.bytecode import scan as scan_code
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.trusted import (
    ABSENT,
    ACCESSORS,
    BUILTINS,
    BY_TEXT,
    BY_VALUE,
    CACHES,
    CONSTANT_OBJECTS,
    CONSTRUCTORS,
    DICTS,
    DYNAMIC,
    FIELDS,
    IMPURE,
    LARGEST_ARRAY,
    LIBRARY_OWN,
    LISTS,
    MOST_VALUES,
    NAMESPACES,
    TORCH,
    TRUSTED,
    dict_of,
    has_library,
    is_library_module,
    is_open,
    is_users,
    is_users_class,
    is_users_function,
)


class Is:
    """An object in a key, equal to itself only."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Is and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def content_of(value: Any) -> tuple[Any, ...]:
    """What an array or a tensor holds. One on another device is known by its version, not by its numbers."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.strides, value.flags.num, value.tobytes()
    about = value.dtype, value.shape, value.stride(), value.device, value.requires_grad, value.grad is None
    if value.device.type != "cpu":
        return *about, value._version, value.data_ptr(), Is(value)
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return *about, plain.view(torch.uint8).numpy().tobytes()


class Walk:
    """Collects values, and what to compare at every call.

    Args:
        names: What code may read of an object that it gets hold of. `self.names` has what the walk met.
    """

    def __init__(self, names: frozenset[str]):
        self.given, self.names = names, set(names)
        self.key: list[Hashable] = []
        self.entries, self.fields, self.states, self.containers, self.arrays = {}, {}, {}, {}, {}
        self.seen: dict[Hashable, int] = {}

    def qnode(self, qnode: qp.QNode) -> None:
        device = vars(qnode)["device"] if type(qnode) is qp.QNode else None
        if device is None or "_wires" not in vars(device):
            raise NotFusable("its QNode or its device is of a kind that cannot be watched")
        self.key.append(Is(self.entry(vars(qnode), "device")))
        self.value(self.entry(vars(device), "_wires"), "wires")
        for name in ("_shots", "_interface", "diff_method", "_compile_pipeline", "func"):
            self.value(self.entry(vars(qnode), name), name)

    # What is compared at every call.

    def entry(self, holder: dict, name: Any) -> Any:
        found = dict.get(holder, name, ABSENT)
        self.entries[id(holder), name] = holder, name, found
        return found

    def field(self, owner: Any, name: str, label: str) -> Any:
        """An attribute of a function, a cell or a container; of types of Python's own only."""
        try:
            found = getattr(owner, name)
        except ValueError:
            raise NotFusable(f"its Python reads `{label}`, which has no value yet") from None
        self.fields[id(owner), name] = owner, name, found
        return found

    def state(self, owner: Any, name: str, label: str) -> Any:
        """An attribute that Python itself stores with an object or a class; runs no code of its class."""
        try:
            found = object.__getattribute__(owner, name)
        except AttributeError:
            raise NotFusable(f"its Python reads `{label}`, which has no value yet") from None
        self.states[id(owner), name] = owner, name, found
        return found

    def once(self, *parts: Any) -> bool:
        """Whether this is new; else the key refers to where it stands."""
        place = tuple(id(part) if not isinstance(part, (str, bool)) else part for part in parts)
        if len(self.key) > MOST_VALUES:
            raise NotFusable("its Python reads too much to be watched")
        if place in self.seen:
            self.key += "again", self.seen[place]
            return False
        self.seen[place] = len(self.key)
        return True

    # Functions, and the chains of attributes in them. `self` in place of a value ends a chain.

    def function(self, function: types.FunctionType, first: Any = ABSENT) -> None:
        """All that a function reads; `first` is its first argument, if that is known."""
        if not self.once(function, first):
            return
        code = self.field(function, "__code__", "")
        scan = scan_code(code)
        if scan.refusal:
            raise NotFusable(f"its Python {scan.refusal}")
        self.key.append(code)
        self.names |= scan.names
        for name in ("__defaults__", "__kwdefaults__"):
            self.value(self.field(function, name, ""), function.__name__)
        for where, name in scan.changes:
            owner = self.root(function, first, where, name)
            is_code = isinstance(owner, (type, types.FunctionType, types.BuiltinFunctionType))
            if owner is not ABSENT and not is_code and not is_library_module(owner):
                raise NotFusable(f"its Python changes `{name}`")
        for where, name, attributes in scan.reads:
            if where != "first" or first is not ABSENT:
                self.chain(self.root(function, first, where, name), attributes, name)

    def root(self, function: types.FunctionType, first: Any, where: str, name: str) -> Any:
        if where == "first":
            return first
        if where == "cell":
            place = function.__code__.co_freevars.index(name)
            return self.field((function.__closure__ or ())[place], "cell_contents", name)
        if where == "import":
            if is_users(name) or name not in sys.modules:
                raise NotFusable(f"its Python imports `{name}`")
            self.value(sys.modules[name], name)
            return sys.modules[name.partition(".")[0]]
        found = self.entry(function.__globals__, name)
        return function.__builtins__.get(name, ABSENT) if found is ABSENT else found

    def chain(self, owner: Any, attributes: tuple[str, ...], label: str) -> None:
        """Follows `owner.a.b.c`; hands on what stands at its end."""
        for name in attributes:
            label = f"{label}.{name}"
            if isinstance(owner, types.ModuleType):
                owner = self.of_module(owner, name, label)
            elif is_users_function(owner) and not hasattr(types.FunctionType, name):
                owner = self.entry(owner.__dict__, name)
            elif type(owner) is qp.QNode and name == "func":
                owner = self.entry(vars(owner), name)
            elif isinstance(owner, type) and is_users_class(owner):
                owner = self.of_class(owner, name, label)
            elif type(owner) in NAMESPACES or is_users_class(type(owner)):
                owner = self.of_instance(owner, name, label)
            else:
                break
        if owner is not self:
            self.value(owner, label)

    def of_module(self, module: types.ModuleType, name: str, label: str) -> Any:
        holder = object.__getattribute__(module, "__dict__")
        if is_library_module(module):
            self.pure(module.__name__, name, label)
        found = self.entry(holder, name)
        if found is not ABSENT or "__getattr__" not in holder:
            return found
        if not is_library_module(module):
            raise NotFusable(f"its Python reads `{label}`, which a module makes up")
        found = getattr(module, name, ABSENT)
        if isinstance(found, (types.ModuleType, type)):
            return found
        self.key += module.__name__, name  # may be made anew at every access
        return self

    def of_class(self, kind: type, name: str, label: str) -> Any:
        if is_users_class(type(kind)):
            raise NotFusable(f"its Python reads `{label}`, of a class whose metaclass cannot be watched")
        base, definition = self.lookup(kind, name)
        if isinstance(kind, enum.EnumMeta) and name in kind._member_map_:
            return kind._member_map_[name]
        if base is None and type(kind) is type and not hasattr(type, name):
            return ABSENT
        if base is None or not is_users_class(base):
            self.value(kind, label)
            return self
        return self.bound(definition, kind, kind, label)

    def of_instance(self, owner: Any, name: str, label: str) -> Any:
        kind, holder = type(owner), self.attributes_of(owner)
        base, definition = self.lookup(kind, name)
        if isinstance(definition, types.MemberDescriptorType):
            return self.state(owner, name, label)
        found = ABSENT if holder is None or type(definition) is property else self.entry(holder, name)
        if found is not ABSENT and not hasattr(type(definition), "__set__"):
            return found
        if base is not None and not is_users_class(base):
            self.value(owner, label)
            return self
        if base is not None:
            return self.bound(definition, owner, kind, label)
        if isinstance(owner, torch.nn.Module):
            parts = [self.entry(holder[group], name) for group in ("_parameters", "_buffers", "_modules")]
            found = next((part for part in parts if part is not ABSENT), ABSENT)
        if found is ABSENT and self.lookup(kind, "__getattr__")[0] not in (None, torch.nn.Module):
            raise NotFusable(f"its Python reads `{label}`, which its class makes up")
        return found

    def bound(self, definition: Any, owner: Any, kind: type, label: str) -> Any:
        """What a definition in a class gives as an attribute of `owner`, an object or the class itself."""
        inner = getattr(definition, "fget" if type(definition) is property else "__func__", None)
        if is_users_function(definition):
            self.function(definition, ABSENT if owner is kind else owner)
        elif type(definition) is property and is_users_function(inner) and owner is not kind:
            self.function(inner, owner)
        elif type(definition) is classmethod and is_users_function(inner):
            self.function(inner, kind)
        elif type(definition) is staticmethod:
            return inner
        elif hasattr(type(definition), "__get__"):
            raise NotFusable(
                f"its Python reads `{label}`, a {type(definition).__name__}, which cannot be watched"
            )
        else:
            return definition
        return self

    def lookup(self, kind: type, name: str) -> tuple[type | None, Any]:
        """The class that defines a name, and as what."""
        for base in self.state(kind, "__mro__", ""):
            found = self.entry(dict_of(base), name) if is_users_class(base) else vars(base).get(name, ABSENT)
            if found is not ABSENT:
                return base, found
        return None, ABSENT

    def attributes_of(self, owner: Any) -> dict | None:
        """The attributes that an object has of its own."""
        kind = self.state(owner, "__class__", "")
        if kind is not type(owner) or (not all(map(is_open, kind.__mro__)) and enum.Enum not in kind.__mro__):
            raise NotFusable(f"its Python reads a {type(owner).__name__}, which cannot be watched")
        if isinstance(self.lookup(kind, "__getattribute__")[1], types.FunctionType):
            raise NotFusable(
                f"its Python reads a {type(owner).__name__}, whose class makes up its attributes"
            )
        holder = self.state(owner, "__dict__", "") if kind.__dictoffset__ else None
        if holder is not None and (type(holder) is not dict or not all(type(name) is str for name in holder)):
            raise NotFusable(f"its Python reads a {kind.__name__} with attributes that have no names")
        return holder

    # Whole values.

    def value(self, value: Any, label: str) -> None:
        """All that code which gets hold of a value may read of it."""
        kind = type(value)
        if value is ABSENT:
            self.key.append("absent")
        elif kind in BY_VALUE:
            self.key += kind, value
        elif kind in BY_TEXT or isinstance(value, np.generic):
            self.key += kind, repr(value), value.tobytes() if isinstance(value, np.generic) else ""
        elif not self.once(value):
            return
        elif kind in LISTS or kind in DICTS or (isinstance(value, tuple) and is_users_class(kind)):
            self.collection(value, label)
        elif kind is slice:
            self.value((value.start, value.stop, value.step), label)
        elif kind in (np.ndarray, torch.Tensor, torch.nn.Parameter):
            self.array(value, label)
        elif isinstance(value, types.ModuleType):
            self.module(value, label)
        elif is_users_function(value):
            self.function(value)
            self.attributes(value.__dict__, False, label)
        elif kind is types.MethodType and is_users_function(value.__func__):
            self.function(value.__func__, value.__self__)
        elif kind is functools.partial:
            for part in (value.func, value.args, value.keywords):
                self.value(part, label)
        elif isinstance(value, type) and is_users_class(value):
            self.class_(value, True)
        elif kind in NAMESPACES or is_users_class(kind):
            self.instance(value, label)
        else:
            self.library(value, label)

    def collection(self, value: Any, label: str) -> None:
        kind = type(value)
        self.key += (kind if kind in LISTS + DICTS else Is(kind)), len(value)
        parts = list(tuple.__iter__(value) if isinstance(value, tuple) else value)
        if not isinstance(value, (tuple, frozenset)):
            self.containers[id(value), kind] = value, parts
        if kind in DICTS and parts:
            values = list(value.values())
            self.containers[id(value), "values"] = value.values(), values
            parts = parts + values
        if kind in (collections.deque, collections.defaultdict):
            name = "maxlen" if kind is collections.deque else "default_factory"
            self.value(self.field(value, name, label), label)
        if is_users_class(kind):
            self.instance(value, label)
        for part in parts:
            self.value(part, label)

    def array(self, value: Any, label: str) -> None:
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and value.requires_grad:
            raise NotFusable(f"its Python uses `{label}`, a tensor from outside that asks for a gradient")
        is_plain = (
            value.layout == torch.strided and not vars(value) if is_tensor else not value.dtype.hasobject
        )
        is_small = (value.numel() if is_tensor else value.size) <= LARGEST_ARRAY
        try:
            content = (
                content_of(value)
                if is_plain and (is_small or (is_tensor and value.device.type != "cpu"))
                else None
            )
        except RuntimeError:
            content = None
        if content is None:
            raise NotFusable(
                f"its Python reads `{label}`, an array that is too large or too special to be watched"
            )
        self.arrays[id(value)] = value, content
        self.key.append(content)

    def module(self, module: types.ModuleType, label: str) -> None:
        computed = "*" in self.given
        if is_library_module(module):
            self.pure(module.__name__, "", label)
            if computed and not module.__name__.startswith("pennylane"):
                raise NotFusable(f"its Python reads attributes of `{label}` by names that it computes")
            computed = False  # names of operators
        self.attributes(object.__getattribute__(module, "__dict__"), computed, label)

    def attributes(self, holder: dict, whole: bool, label: str) -> None:
        """What code may read of an object's own attributes."""
        self.containers[id(holder), dict] = holder, list(holder)
        wanted = list(holder) if whole else sorted(self.given & holder.keys())
        self.key.append(len(wanted))
        for name in wanted:
            self.key.append(name)
            self.value(self.entry(holder, name), f"{label}.{name}")

    def instance(self, value: Any, label: str) -> None:
        """An object of a user's class: what the code names, special methods; all of a library's subclass."""
        kind, holder = type(value), self.attributes_of(value)
        compared = "==" in self.given and not set(NAMESPACES).isdisjoint(kind.__mro__)
        whole = "*" in self.given or compared or has_library(kind)
        self.key.append(Is(kind))
        if holder is not None:
            self.attributes(holder, whole, label)
        for name in {name for base in filter(is_users_class, kind.__mro__) for name in dict_of(base)}:
            is_slot = isinstance(self.lookup(kind, name)[1], types.MemberDescriptorType)
            if is_slot and (whole or name in self.given):
                self.key.append(name)
                self.value(self.state(value, name, label), f"{label}.{name}")
        if kind not in NAMESPACES:
            self.class_(kind, whole or "()" in self.given)

    def class_(self, kind: type, constructed: bool) -> None:
        """What a user's class and its bases define that may run, or be read."""
        if is_users_class(type(kind)):
            raise NotFusable(f"its Python reads `{kind.__name__}`, whose metaclass cannot be watched")
        if not self.once(kind, "class", constructed):
            return
        whole = "*" in self.given or has_library(kind)
        self.key.append(Is(kind))
        for base in filter(is_users_class, self.state(kind, "__mro__", "")):
            holder = dict_of(base)
            self.containers[id(holder), dict] = holder, list(holder)
            for name in sorted(holder):
                special = name.startswith("__") and name.endswith("__")
                is_code = isinstance(holder[name], (types.FunctionType, property, staticmethod, classmethod))
                runs = special and is_code and (constructed or name not in CONSTRUCTORS)
                if name in self.given or runs or (whole and not special and name not in LIBRARY_OWN):
                    self.key.append(name)
                    self.definition(self.entry(holder, name), f"{kind.__name__}.{name}")

    def definition(self, definition: Any, label: str) -> None:
        if isinstance(definition, (staticmethod, classmethod)):
            definition = definition.__func__
        elif type(definition) is property:
            definition = definition.fget
        if not isinstance(definition, ACCESSORS):
            self.value(definition, label)

    # Libraries.

    def pure(self, module: str, name: str, label: str) -> None:
        """Refuses what is no function of its arguments."""
        root = module.partition(".")[0]
        known = name in BUILTINS if module == "builtins" else root in TRUSTED
        if (
            not known
            or IMPURE.search(f"{module}.{name}".rstrip("."))
            or (root == "torch" and module not in TORCH)
        ):
            raise NotFusable(f"its Python uses `{label}`, whose result cannot be watched")

    def library(self, value: Any, label: str) -> None:
        """A function, a class or an object that is not the user's."""
        kind = type(value)
        fields = next((names for base, names in FIELDS.items() if base in kind.__mro__), ABSENT)
        owner = value.__self__ if kind is types.BuiltinFunctionType else None
        if fields is not ABSENT:
            self.key.append(kind)
            for name in sorted(vars(value).keys() - CACHES) if fields is None else fields:
                self.key.append(name)
                self.value(self.entry(vars(value), name), label)
            return
        if type(owner) in LISTS + DICTS and not mutates(value.__name__):
            self.key.append(value.__name__)
            self.value(owner, label)
            return
        if kind is types.FunctionType:
            self.library_function(value, label)
        elif isinstance(value, (type, type(np.diag))) or (
            kind is types.BuiltinFunctionType
            and (owner is None or isinstance(owner, (types.ModuleType, type)))
        ):
            self.names |= {"*"} if value.__name__ in DYNAMIC | {"getattr", "hasattr"} - {label} else set()
            self.pure(value.__module__ or "torch", value.__qualname__, label)
        elif not (isinstance(value, CONSTANT_OBJECTS) or kind is object or kind.__module__ == "typing"):
            raise NotFusable(f"its Python reads `{label}`, a {kind.__name__}, which cannot be watched")
        self.key.append(Is(value))

    def library_function(self, function: types.FunctionType, label: str) -> None:
        """A library's function; with all it closes over, if that includes code of the user."""
        module = str(function.__globals__.get("__name__"))
        self.pure(module, function.__name__, label)
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        if inner and module == "functools":
            raise NotFusable(f"its Python uses `{label}`, whose result cannot be watched")
        code = types.MethodType, functools.partial
        if any(type(part) in code or is_users_function(part) or is_users_class(type(part)) for part in inner):
            for part in inner:
                self.value(part, label)
