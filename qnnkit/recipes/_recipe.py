"""A recipe that has been found: its settings, and the calls of its functions."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import inspect
import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from qnnkit import checks
from qnnkit.recipes._source import RecipeError, digest, of_library
from qnnkit.settings import MAIN_NETS, Settings, is_kits

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe that has been found; `find` makes them."""

    name: str
    """In tables: a shipped name, or that of the file."""
    reference: str
    """By which it is found again: a shipped name, a file, or a word for an object of this process."""
    home: Any
    """The module or the object that has its functions, or the name of a shipped one's module."""
    source: str
    """Python text of the file or the object."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Files beside it that it imports: name -> text."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Settings that its file gives under this name."""

    @cached_property
    def code(self) -> Any:
        """The module or the object that has its functions."""
        return importlib.import_module(self.home) if self.shipped else self.home

    @property
    def shipped(self) -> bool:
        return isinstance(self.home, str)

    @property
    def sentence(self) -> str:
        """What it is about; of a shipped one its module is not imported for it."""
        told = ast.get_docstring(ast.parse(self.source)) if self.shipped else inspect.getdoc(self.code)
        return (told or "").split("\n\n")[0].replace("\n", " ")

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the syntax of its source and of what it imports: comments do not count."""
        return digest({"": self.source, **self.neighbours}, self.preset)

    @cached_property
    def Settings(self) -> type[Settings]:
        """Its settings class, which knows the recipe; rules of the kit's own fields hold in it."""
        base = getattr(self.code, "Settings", Settings)
        if not (isinstance(base, type) and issubclass(base, Settings)):
            step = "Write class Settings(qnnkit.Settings): ..."
            raise self.refusal("Settings", "derive from qnnkit.Settings", base, step)
        fields: dict[str, Any] = {}
        for name, own in base.model_fields.items():
            known = [kind.model_fields[name] for kind in base.__mro__ if is_kits(kind, name)]
            field = copy.copy([*known, own][0])
            field.default = self.preset.get(name, own.default)
            field.default_factory = None if name in self.preset else own.default_factory
            field.description = own.description or field.description
            field.metadata = field.metadata + [rule for rule in own.metadata if rule not in field.metadata]
            field.exclude = field.alias = field.validation_alias = field.serialization_alias = None
            fields[name] = (field.annotation, field)
        made = create_model(base.__name__, __base__=base, __module__=__name__, **fields)
        made.source = self
        return made

    def settings(self, **given: Any) -> Settings:
        """Its settings, some of them exchanged.

        Raises:
            ValueError: A name is unknown, or a value breaks its rule.
        """
        return self.Settings.of(given)

    def check(self, settings: Settings) -> None:
        """Raises ValueError where settings do not go together."""
        if hasattr(self.code, "check"):
            self._call("check", settings=settings)

    def load(self, settings: Settings) -> Any:
        """The data.

        Raises:
            ValueError, OSError: They cannot be used.
        """
        with _seeded(settings.split_seed):  # what it draws at random is the same at every load
            splits = self._call("load", settings=settings)
        if not all(hasattr(splits, name) for name in ("train", "validation", "test", "batches")):
            step = "Return data.of(settings), data.arrays(settings, x, y), or another dataset of qnnkit's."
            raise self.refusal("load", "return splits", type(splits).__name__, step)
        return splits

    def build(self, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """A new net, as no training has changed it; what it draws at random follows from the seed."""
        with _seeded(seed):
            net = self._call("build", settings=settings, splits=splits, seed=seed)
        net = self._module("build", net)
        if settings.backend != "auto":
            from qnnkit import layers

            return layers.on_backend(net, settings.backend)
        return net

    def task(self, settings: Settings) -> Any:
        """What its nets are trained for."""
        from qnnkit import tasks

        if not hasattr(self.code, "task"):
            return tasks.Classification()
        return tasks.complete(self._call("task", settings=settings))

    def control_names(self, settings: Settings, splits: Any, seed: int) -> tuple[str, ...]:
        """What the nets beside the recipe's own are called."""
        from qnnkit import layers

        if hasattr(self.code, "controls"):
            return tuple(self._own_controls(settings, splits, seed))
        return layers.control_names(self.build(settings, splits, seed))

    def more_control_names(self) -> tuple[str, ...]:
        """Controls that are trained only where they are named."""
        from qnnkit import layers

        return () if hasattr(self.code, "controls") else layers.MORE_CONTROLS

    def require_control(self, name: str, names: Collection[str]) -> None:
        """Raises ValueError where there is no such control."""
        if not names:
            rule, step = "be left out for a net without a QuantumLayer to exchange", "Set controls=()."
            raise ValueError(checks.message("controls", rule, name, step))
        names = (*names, *self.more_control_names())
        checks.choice("control", name, names, "The run's own net, hybrid, is trained with any of them.")

    def control(self, name: str, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """One of the nets beside the recipe's own, which starts from the same weights.

        Raises:
            ValueError: There is none of that name.
        """
        from qnnkit import layers

        if not hasattr(self.code, "controls"):
            net = self._called(settings, splits, seed)
            self.require_control(name, layers.control_names(net))
            with self.located_errors():
                made = layers.control(net, name, seed=seed, example=splits.example())
            self._require_exchanged(name, made, splits)
            return made
        found = self._own_controls(settings, splits, seed)
        self.require_control(name, found)
        with _seeded(seed), self.located_errors():
            made = found[name]
            return self._module(f"controls, {name!r}", made if _is_module(made) else made())

    def _require_exchanged(self, name: str, net: nn.Module, splits: Any) -> None:
        """Refuses a control that still runs a circuit which the net also holds outside its modules.

        Raises:
            ValueError: It does, or what stands in a circuit's place is never asked.
        """
        import torch

        from qnnkit import layers

        seen: list[nn.Module] = []
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
        with hook, _seeded(0), layers.evaluating(net), self.located_errors():
            layers.called(net, splits.example())
        inside, asked = set(net.modules()), set(seen)
        stand_ins = [each for each in inside if isinstance(each, layers.STAND_INS)]
        left = [each for each in seen if isinstance(each, layers.QuantumLayer) and each not in inside]
        if left or not asked.issuperset(stand_ins):
            rule = "exchange every circuit of the net"
            step = "Keep a QuantumLayer as an attribute or in a ModuleList alone, and call the layer itself."
            raise self.wrong(checks.message("controls", rule, name, step), "build")

    def _own_controls(self, settings: Settings, splits: Any, seed: int) -> Mapping[str, Any]:
        """Name -> net, or a function that makes it, as the recipe gives them."""
        net = None
        if "net" in inspect.signature(self.code.controls).parameters:
            net = self._called(settings, splits, seed)
        with _seeded(seed):
            found = self._call("controls", net=net, settings=settings, splits=splits, seed=seed)
        if not isinstance(found, Mapping):
            step = 'Return {"name": net, ...}.'
            raise self.refusal("controls", "return a dictionary", type(found).__name__, step)
        for name, made in found.items():
            fits = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name)
            if not fits or name in MAIN_NETS:
                rule, step = "have names of letters, digits, `_`, `.`, `-`", "hybrid and reference are taken."
                raise self.refusal("controls", rule, name, step)
            if not callable(made):
                rule = f"hold a net, or what makes one, as {name!r}"
                raise self.refusal("controls", rule, made, "Return the net itself.")
        return found

    def _called(self, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """The net once it has run: a control asks for the shapes that its circuit has met."""
        import torch

        from qnnkit import layers

        if settings.device == "meta":  # without weights nothing runs
            settings = settings.model_copy(update={"device": "auto"})
        net = self.build(settings, splits, seed)
        with torch.no_grad(), self.located_errors():
            layers.called(net.eval(), splits.example())
        return net.train()

    # --- the user's code ------------------------------------------------------------------------------------

    def _call(self, part: str, **offered: Any) -> Any:
        from qnnkit.tasks import asked

        function = getattr(self.code, part)
        for name, each in inspect.signature(function).parameters.items():
            is_free = each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
            if name not in offered and each.default is each.empty and not is_free:
                step = f"It may ask for {', '.join(offered)}."
                raise self.wrong(f"Function `{part}` must not ask for `{name}`. {step}", part)
        with self.located_errors():
            return asked(function, **offered)

    @contextlib.contextmanager
    def located_errors(self) -> Iterator[None]:
        """Tells what a user's recipe raises with its file and line; the kit's own say it themselves."""
        try:
            yield
        except Exception as error:
            if self.shipped or isinstance(error, RecipeError) or not _frames(error):
                raise
            raise located(self.reference, error) from error

    def _module(self, part: str, made: Any) -> nn.Module:
        if not _is_module(made):
            step = "Return the net itself."
            raise self.refusal(part, "return a torch.nn.Module", type(made).__name__, step)
        return made

    def refusal(self, part: str, rule: str, value: Any, step: str) -> RecipeError:
        """What is wrong with a part of the recipe; see `checks.message`."""
        return self.wrong(checks.message(part, rule, value, step), part)

    def wrong(self, sentence: str, part: str) -> RecipeError:
        """What is wrong, with the line where that part begins."""
        try:
            line = f", line {inspect.getsourcelines(getattr(self.code, part))[1]}"
        except (OSError, TypeError, AttributeError):
            line = ""
        return RecipeError(f"Recipe `{self.reference}`{line}: {sentence}")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch, NumPy and Python from a seed; the caller's generators are left alone."""
    import random

    import numpy as np
    import torch

    from qnnkit.checkpoint import own_generators

    with own_generators():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        np.random.seed(seed)  # noqa: NPY002  what a recipe of a user may draw from
        random.seed(seed)
        yield


def located(reference: str, error: Exception) -> RecipeError:
    """What a recipe's code has raised, with the last line of the user's own that was run."""
    where = f"Recipe `{reference}`"
    if frames := _frames(error):
        file, last = Path(frames[-1].filename), frames[-1]
        where += f", {file.name}" * (file.suffix == ".py" and file.name != Path(reference).name)
        where += f", line {last.lineno}" + f", in {last.name}" * (last.name != "<module>")
    return RecipeError(f"{where}: {type(error).__name__}: {str(error) or 'no message'}")


def _frames(error: Exception) -> list[traceback.FrameSummary]:
    """The lines of an error's trace that are neither Python's, nor a library's, nor the kit's."""
    return [each for each in traceback.extract_tb(error.__traceback__) if not of_library(each.filename)]


def _is_module(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)
