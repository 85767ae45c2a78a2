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
REFUSED = {
    "STORE_GLOBAL": "writes to the global `{}`", "DELETE_GLOBAL": "deletes the global `{}`",
    "STORE_ATTR": "writes to the attribute `{}`", "DELETE_ATTR": "deletes the attribute `{}`",
    "LOAD_BUILD_CLASS": "defines a class", "IMPORT_NAME": "imports `{}`: import it outside",
    "CHECK_EXC_MATCH": "catches exceptions", "CHECK_EG_MATCH": "catches exceptions",
}  # fmt: skip
KNOWN_LOADS = {*LOADS, *ATTRIBUTES, *CONSTANTS, *REFUSED}


@dataclass(frozen=True)
class Code:
    """What a function's code does with names from outside."""

    chains: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(where, name, attributes); where: "global", "cell", "first" (argument)."""
    attributes: tuple[str, ...]
    """Names of the attributes that it reads of anything else."""
    makes: bool
    """Whether it takes classes from objects, for more than their names and comparisons."""
    compares: bool
    """Whether it asks which of two equal objects something is."""
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
    steps, words = list(_steps(code)), list(_words(code.co_consts))
    named = {step.value for step in steps if step.name in ATTRIBUTES | {"LOAD_SUPER_ATTR"}} | set(words)
    is_constructor = code.co_name in CONSTRUCTORS
    unknown = REFLECTION if is_constructor else REFLECTION | {"__setattr__"}
    refusals = [f"uses `.{name}`" for name in named & unknown]
    if code.co_name == "__exit__":
        refusals.append("defines how a `with` block ends")
    makes = "__class__" in words or bool(named & CONSTRUCTORS and not is_constructor)

    def where(name: str, value: Any) -> str | None:
        kind = LOADS.get(name)
        if kind == "local" and value in code.co_cellvars:  # makes a closure
            return None
        if kind in ("cell", "local") and value == first and (not is_inner or value in code.co_freevars):
            return "first"
        return None if kind == "local" or (kind == "cell" and value in own) else kind

    compares = any(b.name == "IS_OP" and a.name not in CONSTANTS for a, b in itertools.pairwise(steps))
    chains, followed = [], set()
    for i, (name, value) in enumerate(steps):
        after, place = [*steps[i + 1 : i + 3], None, None], where(name, value)
        is_own = name == "STORE_ATTR" and is_constructor and (steps[i - 1].value,) == code.co_varnames[:1]
        if name in ATTRIBUTES and value == "__class__":  # compared, or asked for its name
            then = [step.value if step.name in ATTRIBUTES else step.name for step in steps[i + 1 : i + 4]]
            then = then[2:] if then[1:2] == ["__class__"] else then
            makes |= not {*then[:1]} <= {"IS_OP", "COMPARE_OP", "__name__", "__qualname__"}
        if name in LOADS and value in ("vars", "dir") and after[0] == ("CALL", 0):
            refusals.append(f"reads its local variables by `{value}()`")
        if name in REFUSED and not is_own:
            refusals.append(REFUSED[name].format(value))
        elif name in ("STORE_DEREF", "DELETE_DEREF") and value not in own:
            refusals.append(f"writes to `{value}`, which lies outside")
        elif name.startswith("LOAD_") and name not in KNOWN_LOADS:
            refusals.append(f"contains {name}, which is not known")
        elif name == "PUSH_EXC_INFO" and after[0] and after[0].name == "POP_TOP":
            refusals.append("catches exceptions")
        is_super = value == "__class__" and after[1] and after[1].name == "LOAD_SUPER_ATTR"
        if place is None or is_super:
            continue
        attributes = itertools.takewhile(lambda step: step.name in ATTRIBUTES, steps[i + 1 :])
        chain = tuple(step.value for step in attributes)
        followed.update(range(i + 1, i + 1 + len(chain)))
        if value == "super" and first:
            chains.append(("first", first, ()))
        chains.append((place, value, chain))
    read = [step.value for i, step in enumerate(steps) if step.name in ATTRIBUTES and i not in followed]
    read += words if {"getattr", "hasattr"} & set(code.co_names) else []
    for inner in (each for each in code.co_consts if isinstance(each, types.CodeType)):
        found = scan(inner, own, first)
        chains, read = [*chains, *found.chains], [*read, *found.attributes]
        makes, compares = makes or found.makes, compares or found.compares
        refusals += [found.refusal] if found.refusal else []
    chains, read = tuple(dict.fromkeys(chains)), tuple(dict.fromkeys(read))
    return Code(chains, read, makes, compares, next(iter(refusals), ""))


def _words(constants: Iterable[Any]) -> Iterator[str]:
    """The strings among a code's constants, which may name attributes."""
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _words(each)
