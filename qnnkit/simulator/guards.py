"""What a QNode's Python reads besides its arguments, and whether it is as it was.

A fused program stands for Python that ran once. `watch` follows that Python through its bytecode to every
value it can reach: globals, closures, attributes, containers, arrays, helpers. No user code runs. What cannot
be followed, such as a random number or a file, is refused.

A chain of attributes that starts at a global, at a closure cell or at `self` is resolved exactly: `net.scale`
watches one attribute of `net`. Any other use hands the object on: then all of it is watched, whatever its
class defines included.
"""

# Values are told apart by `type(value)`, which pyright does not follow.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalSubscript=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import abc
import collections
import copy
import functools
import itertools
import operator
import types
from collections.abc import Hashable
from typing import Any

import numpy as np
import pennylane as qp
import torch

from qnnkit.simulator import trusted
from qnnkit.simulator.bytecode import scan
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.trusted import ABSENT, dict_of, is_users_class, is_users_function


def content_of(value: Any) -> tuple[Any, ...]:
    """What an array or a tensor holds. One on another device is known by its version, not by its numbers."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.strides, value.flags.num, value.tobytes()
    about = value.dtype, value.shape, value.stride(), value.device, value.requires_grad, value.grad is None
    about += (not vars(value),)
    if value.device.type != "cpu":
        return *about, value._version, value.data_ptr()
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return *about, plain.view(torch.uint8).numpy().tobytes()


def alike(a: Any, b: Any) -> bool:
    """Whether two values are the same for Python that does not ask which of two equal ones it has."""
    kind = type(a)
    if a is b or kind is not type(b):
        return a is b
    if kind in (list, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if kind in (np.ndarray, torch.Tensor):
        return content_of(a) == content_of(b)
    return kind in (int, float, complex, str) and a == a and repr(a) == repr(b)


def unwatched(label: str, what: str) -> NotFusable:
    return NotFusable(f"its Python reads `{label}`, {what}")


class Walk:
    """Collects what a QNode's Python reads, and what to compare at every call.

    Numbers, texts and the like are known by the places where they stand.

    Attributes:
        entries, fields: (holder, name, what stands there) of dictionaries and of Python's own attributes.
        views: (container, its items), for identity; a dictionary has two views.
        arrays: (array, its content, a copy).
        copies: (container, a copy).
        owners: Classes, functions and operators of libraries, to which somebody may add attributes.
        names: Of attributes that are read of whatever comes along.
        kinds, makes: Classes of objects, and whether the Python may make another object of an object's class.
        checks_kinds: Whether it asks what is an instance of what, which abstract classes may be told anew.
        compares: Whether it asks which of two equal objects something is.
    """

    def __init__(self, qnode: qp.QNode):
        self.entries, self.fields, self.views, self.arrays = {}, {}, {}, {}
        self.seen: dict[Hashable, Any] = {}  # with what is seen: else another may get its id
        self.size = 0
        self.kinds: list[type] = []
        self.copies: list[tuple[Any, Any]] = []
        self.owners: list[Any] = [torch.Tensor]
        self.names: dict[str, None] = {}
        self.makes = self.checks_kinds = self.compares = False
        device = vars(qnode)["device"] if type(qnode) is qp.QNode else None
        kind = self.field(device, "__class__")
        if (
            not kind.__module__.startswith("pennylane")
            or "<locals>" in kind.__qualname__
            or "_wires" not in vars(device)
            or self.field(qnode, "__class__") is not qp.QNode
            or self.entry(vars(qnode), "construct") is not ABSENT
            or self.entry(vars(device), "execute") is not ABSENT
        ):
            raise NotFusable("its QNode or its device is of a kind that cannot be watched")
        self.value(self.entry(vars(device), "_wires"), "wires")
        self.entry(vars(qnode), "device")
        for name in ("_shots", "_interface", "diff_method", "_compile_pipeline", "func"):
            self.value(self.entry(vars(qnode), name), name)
        for kind in self.kinds:  # grows on the way
            if self.makes:
                self.class_(kind, kind.__name__)
        size = None
        while size != (size := (len(self.owners), len(self.names))):  # what is added reads more
            for owner, name in itertools.product(tuple(self.owners), tuple(self.names)):
                self.added(owner, name)

    def entry(self, holder: dict, name: Any) -> Any:
        found = dict.get(holder, name, ABSENT)
        self.entries[id(holder), name] = holder, name, found
        return found

    def field(self, owner: Any, name: str, label: str = "") -> Any:
        """What Python itself stores with an object, a function, a cell or a class; runs no code of theirs."""
        try:
            found = object.__getattribute__(owner, name)
        except (AttributeError, ValueError):
            raise unwatched(label, "which has no value yet") from None
        self.fields[id(owner), name] = owner, name, found
        return found

    def items(self, holder: Any) -> None:
        """Which objects stand in a container, and in which order."""
        has_values = len(holder) > 0 and isinstance(holder, trusted.MAPPINGS)
        views = (holder, holder.values()) if has_values else (holder,)
        self.views[id(holder)] = [(view, list(view)) for view in views]
        self.size += len(holder)
        if self.size > trusted.MOST_VALUES:
            raise NotFusable("its Python reads too much to be watched")

    def once(self, *parts: Any) -> bool:
        """Whether this is new."""
        return self.seen.setdefault(tuple(map(id, parts)), parts) is parts

    # --- functions --------------------------------------------------------------------------------

    def function(self, function: types.FunctionType, first: Any = ABSENT) -> None:
        """All that a function reads; `first` is its first argument, if that is known."""
        if not self.once(function, first):
            return
        code = self.field(function, "__code__")
        reads = scan(code)
        if reads.refusal:
            raise NotFusable(f"its Python {reads.refusal}")
        self.makes |= reads.makes
        self.compares |= reads.compares
        self.names |= dict.fromkeys(reads.attributes)
        for name in ("__defaults__", "__kwdefaults__", "__dict__", "__name__", "__qualname__", "__doc__"):
            self.value(self.field(function, name), function.__name__)
        if first is not ABSENT and not code.co_argcount:  # it comes in *args
            self.value(first, function.__name__)
        found = []
        for where, name, attributes in reads.chains:
            if where == "first" and first is ABSENT:
                self.names |= dict.fromkeys(attributes)
            else:
                found.append(self.chain(self.root(function, first, where, name), attributes, name))
        tensors = [each for each in found if each is torch.Tensor or isinstance(each, torch.Tensor)]
        if tensors and any(each is type for each in found):  # a traced tensor is of another type
            raise NotFusable("its Python uses `type` where there are tensors; isinstance can be followed")

    def root(self, function: types.FunctionType, first: Any, where: str, name: str) -> Any:
        if where == "first":
            return first
        if where == "cell":
            place = function.__code__.co_freevars.index(name)
            return self.field((function.__closure__ or ())[place], "cell_contents", name)
        found = self.entry(function.__globals__, name)
        return self.entry(function.__builtins__, name) if found is ABSENT else found

    def chain(self, owner: Any, attributes: tuple[str, ...], label: str) -> Any:
        """What stands at the end of `owner.a.b.c`, which is taken in."""
        for i, name in enumerate(attributes):
            label = f"{label}.{name}"
            if owner is self:  # which stands for what was taken in already
                break
            if isinstance(owner, types.ModuleType):
                owner = self.of_module(owner, name, label)
            elif is_users_function(owner) and not hasattr(types.FunctionType, name):
                owner = self.entry(self.field(owner, "__dict__"), name)
            elif type(owner) is qp.QNode and name == "func":
                owner = self.entry(vars(owner), name)
            elif trusted.is_users_object(owner):
                owner = self.of_object(owner, name, label)
            else:
                self.names |= dict.fromkeys(attributes[i:])
                break
        if owner is not self:
            self.value(owner, label)
        return owner

    def of_module(self, module: types.ModuleType, name: str, label: str) -> Any:
        holder = object.__getattribute__(module, "__dict__")
        found, makes_up = self.entry(holder, name), self.entry(holder, "__getattr__")
        if trusted.is_library_module(module):
            self.pure(module.__name__, name, label)
            if found is ABSENT and makes_up is not ABSENT:  # other values may be made anew at every access
                found = getattr(module, name, ABSENT)
                return found if isinstance(found, (types.ModuleType, type)) else self
        elif type(module) is not types.ModuleType or makes_up is not ABSENT:
            raise unwatched(label, "of a module that makes up its attributes")
        return found

    def of_object(self, owner: Any, name: str, label: str) -> Any:
        """An attribute of a user's class, or of an object of one; a method's own reads, with its object."""
        kind = owner if isinstance(owner, type) else type(owner)
        if is_users_class(type(kind)):
            raise unwatched(label, "of a class whose metaclass cannot be watched")
        base, definition = self.lookup(kind, name)
        found = ABSENT if owner is kind else self.entry(holder := self.dict_of_object(owner, label), name)
        if found is not ABSENT and not self.binds(definition, "__set__"):
            return found
        if isinstance(owner, torch.nn.Module) and base is None:
            groups = [self.entry(holder, group) for group in ("_parameters", "_buffers", "_modules")]
            parts = [self.entry(group, name) for group in groups if group is not ABSENT]
            return next((part for part in parts if part is not ABSENT), ABSENT)
        if base is None and (owner is not kind or not hasattr(type(kind), name)):
            return ABSENT
        inner, first = definition, ABSENT if owner is kind else owner
        if type(definition) in (classmethod, staticmethod):
            inner, first = definition.__func__, kind
        elif type(definition) is property and owner is not kind:
            inner = definition.fget
        if base is None or not is_users_class(base):
            self.value(owner, label)
        elif type(definition) is staticmethod:
            return inner
        elif is_users_function(inner):
            self.function(inner, first)
        elif self.binds(definition, "__get__"):
            raise unwatched(label, f"a {type(definition).__name__}, which cannot be watched")
        else:
            return definition
        return self

    def lookup(self, kind: type, name: str) -> tuple[type | None, Any]:
        """The class that defines a name, and as what."""
        for base in self.field(kind, "__mro__"):
            found = self.entry(dict_of(base), name) if is_users_class(base) else vars(base).get(name, ABSENT)
            if found is not ABSENT:
                return base, found
        return None, ABSENT

    def binds(self, definition: Any, name: str) -> bool:
        """Whether an attribute of a class is a descriptor."""
        kind = type(definition)
        return bool(self.lookup(kind, name)[0]) if is_users_class(kind) else hasattr(kind, name)

    def dict_of_object(self, owner: Any, label: str) -> dict:
        """The attributes that an object has of its own, if it keeps them as objects do by default."""
        kind = self.field(owner, "__class__")
        hooks = [self.lookup(kind, name)[0] for name in ("__getattr__", "__getattribute__")]
        makes_up = any(base and is_users_class(base) for base in hooks) or kind is not type(owner)
        holder = self.field(owner, "__dict__") if kind.__dictoffset__ else {}
        has_names = type(holder) is dict and all(type(name) is str for name in holder)
        if makes_up or not has_names or not trusted.is_plain(kind):
            raise unwatched(label, f"a {type(owner).__name__}, which cannot be watched")
        return holder

    # --- whole values -----------------------------------------------------------------------------

    def value(self, value: Any, label: str) -> None:
        """All that code which gets hold of a value may read of it."""
        kind = type(value)
        is_number = isinstance(value, np.generic) and not isinstance(value, np.void)
        if value is ABSENT or kind in trusted.ATOMS or is_number or not self.once(value):
            return
        if kind in trusted.COLLECTIONS or (isinstance(value, tuple) and is_users_class(kind)):
            self.collection(value, label)
        elif kind is slice:
            self.value((value.start, value.stop, value.step), label)
        elif kind in (np.ndarray, torch.Tensor, torch.nn.Parameter):
            self.array(value, label)
        elif is_users_function(value):
            self.function(value)
        elif kind is types.MethodType and is_users_function(value.__func__):
            self.function(value.__func__, value.__self__)
        elif kind is functools.partial:
            for part in (value.func, value.args, value.keywords):
                self.value(part, label)
            self.value(self.field(value, "__dict__"), label)
        elif isinstance(value, type) and is_users_class(value):
            self.class_(value, label)
        elif trusted.is_users_object(value):
            self.instance(value, label)
        else:
            self.of_library(value, label)

    def collection(self, value: Any, label: str) -> None:
        parts = list(tuple.__iter__(value) if isinstance(value, tuple) else value)
        if not isinstance(value, (tuple, frozenset)):
            self.items(value)
        if isinstance(value, trusted.CHANGEABLE):
            same = dict if isinstance(value, dict) else set if isinstance(value, set) else list
            self.copies.append((value, same(value)))  # a set made of a list may have another order
        if isinstance(value, trusted.MAPPINGS):
            parts += value.values()
        if is_users_class(type(value)):
            self.instance(value, label)
        for part in parts:
            self.value(part, label)

    def array(self, value: Any, label: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                raise unwatched(label, "a tensor from outside that asks for a gradient")
            is_plain = value.layout == torch.strided and not vars(value) and value.grad is None
            size = value.numel() if value.device.type == "cpu" else 0
        else:
            is_plain, size = not value.dtype.hasobject and value.dtype.names is None, value.size
        try:
            if not is_plain or size > trusted.LARGEST_ARRAY:
                raise RuntimeError
            self.arrays[id(value)] = value, content_of(value), copy.deepcopy(value)
        except RuntimeError:  # or torch's, of numbers that cannot be had
            raise unwatched(label, "an array that is too large or too special to be watched") from None

    def instance(self, value: Any, label: str) -> None:
        """An object of a user's class: all its attributes, and all that its class defines."""
        if isinstance(value, torch.nn.Module):
            raise NotFusable(f"its Python hands on `{label}`, a module, not single attributes of it")
        holder = self.dict_of_object(value, label)
        self.items(holder)
        self.copies.append((holder, dict(holder)))
        for name, part in list(holder.items()):
            self.value(part, f"{label}.{name}")
        self.kinds.append(type(value))
        self.class_(type(value), label, constructed=False)

    def class_(self, kind: type, label: str, constructed: bool = True) -> None:
        """All that a user's class and its bases define; its constructors only if it may be called."""
        if not trusted.is_plain(kind):
            raise unwatched(label, f"a {kind.__name__}, which cannot be watched")
        if not self.once(kind, constructed):
            return
        for base in filter(is_users_class, self.field(kind, "__mro__")):
            for name in ("__name__", "__qualname__"):
                self.field(base, name)
            holder = dict_of(base)
            self.items(holder)
            for name, definition in list(holder.items()):
                if type(definition) is classmethod and is_users_function(definition.__func__):
                    definition = types.MethodType(definition.__func__, kind)
                elif isinstance(definition, (staticmethod, classmethod)):
                    definition = definition.__func__
                elif type(definition) is property:
                    definition = definition.fget
                if name not in trusted.NOT_READ and (constructed or name not in trusted.CONSTRUCTORS):
                    self.value(definition, f"{label}.{name}")

    # --- libraries --------------------------------------------------------------------------------

    def pure(self, module: str, name: str, label: str) -> None:
        """Refuses what is no function of its arguments."""
        if not trusted.is_pure(module, name):
            raise NotFusable(f"its Python uses `{label}`, whose result cannot be watched")

    def of_library(self, value: Any, label: str) -> None:
        """A function, a class or an object that is not the user's."""
        kind = type(value)
        fields = next((names for base, names in trusted.FIELDS.items() if base in kind.__mro__), ABSENT)
        owner = value.__self__ if kind is types.BuiltinFunctionType else None
        if fields is not ABSENT:
            self.owners += kind, value
            self.copies.append((vars(value), dict(vars(value))))
            if getattr(value, "pauli_rep", None) is not None:
                self.collection(value.pauli_rep, label)
            for name in sorted(vars(value).keys() - trusted.CACHES) if fields is None else fields:
                self.value(self.entry(vars(value), name), label)
        elif type(owner) in trusted.COLLECTIONS:
            self.value(owner, label)
        elif value is qp:  # of which `getattr` takes operators by name
            self.items(vars(qp))
        elif isinstance(value, (type, types.FunctionType, type(np.diag))) or (
            kind is types.BuiltinFunctionType and isinstance(owner, (types.NoneType, types.ModuleType, type))
        ):
            self.library_function(value, owner, label)
        elif not (
            (isinstance(value, trusted.CONSTANT_OBJECTS) and getattr(value, "names", None) is None)
            or kind is object
            or (kind.__module__ == "typing" and not hasattr(value, "__origin__"))
        ):
            raise unwatched(label, f"a {kind.__name__}, which cannot be watched")

    def library_function(self, value: Any, owner: Any, label: str) -> None:
        """A library's function or class; with all that it closes over, if that includes code of the user."""
        module, name, inner = value.__module__, value.__qualname__, []
        if isinstance(value, types.FunctionType):  # its __module__ may be another's
            module, name = str(value.__globals__.get("__name__")), value.__name__
            inner = [cell.cell_contents for cell in value.__closure__ or ()]
            module = "functools.lru_cache" if inner and module == "functools" else module
        elif module is None and isinstance(owner, type):  # a method that comes with Python's own type
            module, name = owner.__module__, owner.__name__
        self.makes |= value.__name__ in trusted.MAKERS
        self.checks_kinds |= value in (isinstance, issubclass)
        self.compares |= value in (operator.is_, operator.is_not)
        self.pure(module or "", name, label)
        for part in inner if any(map(trusted.holds_users, inner)) else ():
            self.value(part, label)
        if isinstance(value, (type, types.FunctionType)):
            self.owners.append(value)

    def added(self, owner: Any, name: str) -> None:
        """An attribute that somebody may have added to what is a library's, or one that came with it."""
        bases = owner.__mro__ if isinstance(owner, type) else ()
        holders = [dict_of(base) for base in bases if not base.__flags__ & 1 << 8]
        holders += [] if bases else [vars(owner)]
        found = next((holder[name] for holder in holders if name in holder), ABSENT)
        found = found.fget if type(found) is property else getattr(found, "__func__", found)
        if not hasattr(type(found), "__get__") or is_users_function(found):
            for holder in holders:
                self.entry(holder, name)
            self.value(found, name)


# --- the watch --------------------------------------------------------------------------------------


class Watch:
    """What a QNode's Python reads, as it was when the watch was made."""

    def __init__(self, walk: Walk):
        self._alike = operator.is_ if walk.compares else alike
        self._dtype = torch.get_default_dtype()
        self._token = abc.get_cache_token() if walk.checks_kinds else None
        self._entries, self._fields = _columns(walk.entries), _columns(walk.fields)
        views = list(itertools.chain.from_iterable(walk.views.values()))
        self._views, self._lengths = [view for view, _ in views], [len(items) for _, items in views]
        self._items = [item for _, items in views for item in items]
        self._arrays, self._copies = list(walk.arrays.values()), walk.copies

    def holds(self, in_value: bool = False) -> bool:
        """Whether everything read is as it was: parts by identity, arrays by content; some microseconds.

        Args:
            in_value: Whether other numbers, texts, lists and arrays do that are equal; this takes longer.
        """
        (dicts, names, values), (owners, fields, contents) = self._entries, self._fields
        is_ = self._alike if in_value else operator.is_
        try:
            return (
                torch.get_default_dtype() is self._dtype
                and (self._token is None or abc.get_cache_token() == self._token)
                and all(map(is_, map(dict.get, dicts, names, itertools.repeat(ABSENT)), values))
                and all(map(is_, map(object.__getattribute__, owners, fields), contents))
                and list(map(len, self._views)) == self._lengths
                and all(map(is_, itertools.chain.from_iterable(self._views), self._items))
                and all(content_of(array) == content for array, content, _ in self._arrays)
            )
        except (AttributeError, RuntimeError, ValueError):  # an attribute or a cell is empty now
            return False

    def restore(self) -> None:
        """Puts containers and arrays back to what they were."""
        for array, content, known in self._arrays:
            if content_of(array) != content:
                array[...] = known
        for container, known in self._copies:
            container.clear()
            fill = container.extend if isinstance(container, (list, collections.deque)) else container.update
            fill(known)


def watch(qnode: qp.QNode) -> Watch:
    """Follows a QNode's Python to everything it reads.

    Raises:
        NotFusable: The Python reads, or changes, what cannot be watched.
    """
    try:
        return Watch(Walk(qnode))
    except NotFusable:
        raise
    except Exception as error:  # of an object that makes up what is asked of it, or is nested too deeply
        raise NotFusable(f"its Python reads what cannot be watched ({type(error).__name__})") from error


def _columns(rows: dict[Any, tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*rows.values(), strict=True)) or ((), (), ())
