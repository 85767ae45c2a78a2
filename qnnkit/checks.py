"""One uniform message for a bad value: what it is, the rule, the value, the next step."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import torch


MANY = 20
"""Most choices that a message lists, if it can say where all of them are listed."""


_names: ContextVar[Mapping[str, str]] = ContextVar("names", default={})  # noqa: B039  never changed


class Message(str):
    """The message of an error, with its parts: name, rule, value, next step."""

    parts: tuple[str, str, Any, str]


def message(name: str, rule: str, value: object, next_step: str) -> Message:
    """Returns an error message about an argument, in the form that all of qnnkit uses; see `renamed`.

    Example:
        >>> message("wires", "lie in 0..3", (0, 4), "Raise n_qubits or drop wire 4.")
        'Argument `wires` must lie in 0..3, but is (0, 4). Raise n_qubits or drop wire 4.'
    """
    name = _names.get().get(name, name)
    text = Message(f"Argument `{name}` must {rule}, but is {value!r}. {next_step}".rstrip())
    text.parts = name, rule, value, next_step
    return text


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Replaces argument names in messages inside by `names`, so that users see the names they gave.

    Example:
        >>> with renamed({"root": "data_dir"}):
        ...     message("root", "hold images", "x", "Add some.")
        "Argument `data_dir` must hold images, but is 'x'. Add some."
        >>> message("root", "hold images", "x", "Add some.")
        "Argument `root` must hold images, but is 'x'. Add some."
    """
    before = _names.set({**_names.get(), **names})
    try:
        yield
    finally:
        _names.reset(before)


def choice(name: str, value: str, choices: Collection[str], more: str = "") -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        ValueError: It is not. The message has the nearest choice, then all of them (unless there are many and
            `more` says where they are listed), then `more`.
    """
    if value in choices:
        return value
    near = difflib.get_close_matches(str(value), [*choices], n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = choices and not (len(choices) > MANY and more)
    names = f"The choices are {', '.join(choices)}. " if listed else ""
    raise ValueError(message(name, "be a known name", value, f"{hint}{names}{more}"))


def positive(
    name: str, value: Any, next_step: str = "Use 1 or more.", *, above: int = 0, whole: bool = True
) -> None:
    """Raises ValueError unless `value` is a number above `above`; a whole one, unless `whole` is False."""
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (number and above < value < math.inf):  # pyright: ignore[reportOperatorIssue]
        raise ValueError(message(name, f"be a {'whole ' * whole}number above {above}", value, next_step))


def share(name: str, value: Any, next_step: str = "Use 0.1 for 10 %.") -> None:
    """Raises ValueError unless `value` is a number from 0 to 1."""
    if not (isinstance(value, Real) and 0 <= value <= 1):  # pyright: ignore[reportOperatorIssue]
        raise ValueError(message(name, "be a number from 0 to 1", value, next_step))


def last_axis(name: str, tensor: torch.Tensor, size: int, next_step: str) -> None:
    """Raises ValueError unless the last axis of `tensor` has length `size`."""
    if tensor.ndim == 0 or tensor.shape[-1] != size:
        raise ValueError(message(name, f"have shape (..., {size})", tuple(tensor.shape), next_step))


def folder(name: str, path: str | Path, next_step: str) -> Path:
    """Returns `path` as a Path if it is a folder.

    Raises:
        FileNotFoundError: It does not exist, or is a file.
    """
    path = Path(path)
    if path.is_dir():
        return path
    raise FileNotFoundError(message(name, "be an existing folder", str(path), next_step))


def read_yaml(path: Path, kind: str) -> Any:
    """Reads the plain values in a user's YAML file; nothing in it is ever executed.

    Args:
        path: The file.
        kind: The file's kind in error messages, such as "batch file".

    Raises:
        ValueError: The file is not plain YAML, repeats a key, or uses aliases.
        OSError: The file cannot be read.
    """
    try:
        with path.expanduser().open("rb") as file:
            return yaml.load(file, _PlainLoader)  # a SafeLoader
    except OSError as error:
        sentence = f"Cannot read {kind} `{path}` ({error.strerror}). Check the path."
        raise type(error)(error.errno, sentence) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        step = "Write plain keys, numbers, texts and lists only, in UTF-8."
        raise ValueError(
            f"{kind.capitalize()} `{path}` must be plain YAML, but is not: {problem}. {step}"
        ) from None


def written(text: str) -> float | str:
    """Returns a number if Python prints it the same way, else the text: `1.10` may be a version.

    Example:
        >>> written("0.1"), written("1e-3")
        (0.1, '1e-3')
    """
    return float(text) if str(float(text)) == text else text


class _PlainLoader(yaml.SafeLoader):
    """Rejects aliases, which can expand to gigabytes if nested, and repeated keys, which YAML would drop."""

    def fetch_alias(self) -> None:
        raise yaml.MarkedYAMLError(problem="it uses an alias `*`; write it out", problem_mark=self.get_mark())

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Keeps `on`, `010`, `1.10` and `12:30` as text, as `--set` does; a number's own rule parses them."""
        value = super().construct_object(node, deep)
        text = node.value if isinstance(node, yaml.ScalarNode) and value is not None else value
        return value if isinstance(value, str) or str(value).lower() == str(text).lower() else text

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.MarkedYAMLError(problem=f"`{twice[0]}` is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)
