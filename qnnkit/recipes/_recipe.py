"""A loaded recipe: its settings, and the calls of its functions."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import create_model
from torch import nn

from qnnkit import checks, layers, tasks
from qnnkit.checkpoint import own_generators
from qnnkit.recipes._source import RecipeError, digest, located, user_frames
from qnnkit.settings import MAIN_NETS, Settings, is_kits

BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, eq=False)
class Recipe:
    """A loaded recipe; `find` makes them."""

    name: str
    """In tables: a shipped name, or that of the file."""
    reference: str
    """What loads it again: a shipped name, a file, or a word for an object of this process."""
    home: Any
    """The module or the object that has its functions, or the name of a shipped one's module."""
    source: str
    """Python text of the file or the object."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Files next to it that it imports: name -> text."""

    @cached_property
    def code(self) -> Any:
        """The module or the object that has its functions."""
        return importlib.import_module(self.home) if self.shipped else self.home

    @property
    def shipped(self) -> bool:
        return isinstance(self.home, str)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the syntax of its source and of what it imports: comments do not count."""
        return digest({"": self.source, **self.neighbours})

    @cached_property
    def Settings(self) -> type[Settings]:
        """Its settings class, which knows the recipe; rules of the kit's own fields hold in it."""
        base = getattr(self.code, "Settings", Settings)
        if not (isinstance(base, type) and issubclass(base, Settings)):
            step = "Write class Settings(qnnkit.Settings): ..."
            raise self.refusal("Settings", "derive from qnnkit.Settings", base, step)
        fields: dict[str, Any] = {}
        for name, own in base.model_fields.items():
            kits = [kind.model_fields[name] for kind in base.__mro__ if is_kits(kind, name)]
            field = copy.copy([*kits, own][0])
            field.default, field.default_factory = own.default, own.default_factory
            field.description = own.description or field.description
            field.metadata = field.metadata + [rule for rule in own.metadata if rule not in field.metadata]
            fields[name] = (field.annotation, field)
        made = create_model(base.__name__, __base__=base, __module__=__name__, **fields)
        made.source = self
        return made

    def settings(self, **given: Any) -> Settings:
        """Its settings, some of them changed.

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
            net = self._module("build", self._call("build", settings=settings, splits=splits, seed=seed))
        return net if settings.backend == "auto" else layers.on_backend(net, settings.backend)

    def task(self, settings: Settings) -> Any:
        """What its nets are trained for."""
        own = hasattr(self.code, "task")
        return tasks.complete(self._call("task", settings=settings)) if own else tasks.Classification()

    def control_names(self, settings: Settings, splits: Any, seed: int) -> tuple[str, ...]:
        """The names of the controls."""
        if hasattr(self.code, "controls"):
            return tuple(self._own_controls(settings, splits, seed))
        net = self.build(settings, splits, seed)
        fixed = () if layers.count_parameters(net)["classical"] else ("frozen_random", "no_quantum")
        return tuple(name for name in layers.control_names(net) if name not in fixed)  # nothing to train

    def control(self, name: str, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """One of the controls, with the same initial weights as the recipe's net.

        Raises:
            ValueError: There is none of that name.
        """
        if hasattr(self.code, "controls"):
            offered = self._own_controls(settings, splits, seed)
            made = offered[checks.choice("control", name, offered)]
            with _seeded(seed), self.located_errors():
                return self._module(f"controls, {name!r}", made if isinstance(made, nn.Module) else made())
        net = self._called(settings, splits, seed)
        with self.located_errors():
            made = layers.control(net, name, seed=seed, example=splits.example())
        self._require_exchanged(name, made, splits)
        return made

    def _require_exchanged(self, name: str, net: nn.Module, splits: Any) -> None:
        """Refuses a control that still runs a circuit which the net also holds outside its modules.

        Raises:
            ValueError: It does, or what stands in a circuit's place is never asked.
        """
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
            raise self.refusal("controls", rule, name, step)

    def _own_controls(self, settings: Settings, splits: Any, seed: int) -> Mapping[str, Any]:
        """Name -> net, or a function that makes it, as the recipe gives them."""
        net = None
        if "net" in inspect.signature(self.code.controls).parameters:
            net = self._called(settings, splits, seed)
        with _seeded(seed):
            found = self._call("controls", net=net, settings=settings, splits=splits, seed=seed)
        names = found if isinstance(found, Mapping) else [""]
        if not all(_is_name(name) and callable(found[name]) for name in names):
            rule = 'return {"name": net}, in letters, digits, `_`, `.`, `-`, and not as hybrid or reference'
            step = "A value is a net, or a function that makes one."
            raise self.refusal("controls", rule, [*names], step)
        return found

    def _called(self, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """The net once it has run: a control asks for the shapes that its circuit has met."""
        if settings.device == "meta":  # without weights nothing runs
            settings = settings.model_copy(update={"device": "auto"})
        net = self.build(settings, splits, seed)
        with torch.no_grad(), self.located_errors():
            layers.called(net.eval(), splits.example())
        return net.train()

    # --- the user's code ------------------------------------------------------------------------------------

    def _call(self, part: str, **offered: Any) -> Any:
        function = getattr(self.code, part)
        parameters = inspect.signature(function).parameters.values()
        needed = {each.name for each in parameters if each.default is each.empty and each.kind in BY_NAME}
        if unknown := needed - offered.keys():
            step = f"It may ask for {', '.join(offered)}."
            raise self.wrong(f"Function `{part}` must not ask for `{unknown.pop()}`. {step}")
        with self.located_errors():
            return tasks.asked(function, **offered)

    @contextlib.contextmanager
    def located_errors(self) -> Iterator[None]:
        """Tells what a user's recipe raises with its file and line; the kit's own say it themselves."""
        try:
            yield
        except Exception as error:
            if self.shipped or isinstance(error, RecipeError) or not user_frames(error):
                raise
            raise located(self.reference, error) from error

    def _module(self, part: str, made: Any) -> nn.Module:
        if not isinstance(made, nn.Module):
            step = "Return the net itself."
            raise self.refusal(part, "return a torch.nn.Module", type(made).__name__, step)
        return made

    def refusal(self, part: str, rule: str, value: Any, step: str) -> RecipeError:
        """What is wrong with a part of the recipe; see `checks.message`."""
        return self.wrong(checks.message(part, rule, value, step))

    def wrong(self, sentence: str) -> RecipeError:
        """What is wrong with the recipe."""
        return RecipeError(f"Recipe `{self.reference}`: {sentence}")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch, NumPy and Python from a seed; the caller's generators are left alone."""
    with own_generators():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        np.random.seed(seed)  # noqa: NPY002  what a recipe of a user may draw from
        random.seed(seed)
        yield


def _is_name(name: Any) -> bool:
    """Whether a control may be called so: it is part of the names of files."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name))) and name not in MAIN_NETS
