"""What a function's code does with names from outside, read off its bytecode."""

from __future__ import annotations

import dis
import functools
import itertools
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from qnnkit.simulator.graph import names
from qnnkit.simulator.trusted import CONSTRUCTORS, REFLECTION

SKIPPED = names("CACHE EXTENDED_ARG PUSH_NULL NOP RESUME PRECALL COPY_FREE_VARS MAKE_CELL NOT_TAKEN")
ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
CONSTANTS = names(
    "LOAD_CLOSURE LOAD_CONST LOAD_SMALL_INT LOAD_CONST_IMMORTAL LOAD_CONST_MORTAL LOAD_ASSERTION_ERROR "
    "LOAD_COMMON_CONSTANT LOAD_SPECIAL LOAD_SUPER_ATTR"
)
LOADS = {
    "LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell", "LOAD_FAST": "local",
    "LOAD_FAST_BORROW": "local", "LOAD_FAST_CHECK": "local", "LOAD_FAST_AND_CLEAR": "local",
}  # fmt: skip
"""Instructions that load a name -> where it stands."""
STORES = {
    "STORE_GLOBAL": "writes to the global `{}`", "DELETE_GLOBAL": "deletes the global `{}`",
    "STORE_ATTR": "writes to the attribute `{}`", "DELETE_ATTR": "deletes the attribute `{}`",
    "LOAD_BUILD_CLASS": "defines a class", "IMPORT_NAME": "imports `{}`: import it outside",
}  # fmt: skip


@dataclass(frozen=True)
class Code:
    """What a function's code does with names from outside."""

    chains: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(where, name, attributes); where: "global", "cell", "first" (argument)."""
    attributes: tuple[str, ...]
    """Names of the attributes that it reads of anything else."""
    makes: bool
    """Whether it takes classes from objects, for more than their names and comparisons."""
    refusal: str = ""


class _Step(NamedTuple):
    name: str
    value: Any


def _steps(code: types.CodeType) -> Iterator[_Step]:
    for each in dis.get_instructions(code):
        if "_FAST_" in each.opname and isinstance(each.argval, tuple):  # two in one, since Python 3.13
            yield from map(_Step, re.findall("LOAD_FAST|STORE_FAST", each.opname), each.argval)
        elif each.opname not in SKIPPED:
            yield _Step(each.opname, each.argval)


@functools.lru_cache(maxsize=4096)
def scan(code: types.CodeType, local: frozenset[str] = frozenset(), first: str | None = None) -> Code:
    """Reads bytecode.

    Args:
        code: Of a function, or of one inside another.
        local: Cells of the functions around it.
        first: Name of the outermost function's first argument.
    """
    is_inner = bool(local) or first is not None
    own = local | frozenset(code.co_cellvars)
    first = first if is_inner else code.co_varnames[0] if code.co_argcount else ""
    steps = list(_steps(code))
    attributes = {step.value for step in steps if step.name in ATTRIBUTES | {"LOAD_SUPER_ATTR"}}
    chains, followed = [], set()
    named = attributes | set(_words(code.co_consts))
    is_constructor = code.co_name in CONSTRUCTORS
    unknown = REFLECTION if is_constructor else REFLECTION | {"__setattr__"}
    refusals = [f"uses `.{name}`" for name in named & unknown]
    if code.co_name == "__exit__":
        refusals.append("defines how a `with` block ends")
    makes = not is_constructor and bool(named & CONSTRUCTORS)
    makes |= "__class__" in named - attributes

    def where(step: _Step) -> str | None:
        kind, name = LOADS.get(step.name), step.value
        if kind == "local" and name in code.co_cellvars:  # makes a closure
            return None
        if kind in ("cell", "local") and name == first and (not is_inner or name in code.co_freevars):
            return "first"
        return None if kind == "local" or (kind == "cell" and name in own) else kind

    for i, step in enumerate(steps):
        name, value, place = step.name, step.value, where(step)
        is_named = name in LOADS or name in ATTRIBUTES
        if name in ATTRIBUTES and value == "__class__":
            after = [each.value if each.name in ATTRIBUTES else each.name for each in steps[i + 1 : i + 4]]
            after = after[2:] if after[1:2] == ["__class__"] else after
            makes |= not {*after[:1]} <= {"IS_OP", "COMPARE_OP", "__name__", "__qualname__"}
        if (
            name in LOADS
            and value in ("vars", "dir")
            and [(e.name, e.value) for e in steps[i + 1 : i + 2]] == [("CALL", 0)]
        ):
            refusals.append(f"reads its local variables by `{value}()`")
        is_own = is_constructor and (steps[i - 1].value,) == code.co_varnames[:1]
        if name in STORES and not (name == "STORE_ATTR" and is_own):
            refusals.append(STORES[name].format(value))
        elif name in ("STORE_DEREF", "DELETE_DEREF") and value not in own:
            refusals.append(f"writes to `{value}`, which lies outside")
        elif name.startswith("LOAD_") and not (is_named or name in CONSTANTS or name in STORES):
            refusals.append(f"contains {name}, which is not known")
        elif name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH") or (
            name == "PUSH_EXC_INFO" and steps[i + 1].name == "POP_TOP"
        ):
            refusals.append("catches exceptions")
        if place is None or (
            value == "__class__" and [each.name for each in steps[i + 2 : i + 3]] == ["LOAD_SUPER_ATTR"]
        ):
            continue
        chain = tuple(
            each.value for each in itertools.takewhile(lambda each: each.name in ATTRIBUTES, steps[i + 1 :])
        )
        followed.update(range(i + 1, i + 1 + len(chain)))
        if value == "super" and first:
            chains.append(("first", first, ()))
        chains.append((place, value, chain))
    read = [step.value for i, step in enumerate(steps) if step.name in ATTRIBUTES and i not in followed]
    if {"getattr", "hasattr"} & set(code.co_names):
        read += _words(code.co_consts)
    for inner in (each for each in code.co_consts if isinstance(each, types.CodeType)):
        found = scan(inner, own, first)
        chains, read = [*chains, *found.chains], [*read, *found.attributes]
        makes |= found.makes
        refusals += [found.refusal] if found.refusal else []
    chains, read = tuple(dict.fromkeys(chains)), tuple(dict.fromkeys(read))
    return Code(chains, read, makes, next(iter(refusals), ""))


def _words(constants: Iterable[Any]) -> Iterator[str]:
    """The strings among a code's constants, which may name attributes."""
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _words(each)
