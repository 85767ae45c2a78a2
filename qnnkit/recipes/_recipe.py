"""A loaded recipe: its settings, and calls to its functions."""

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


@dataclass(frozen=True, eq=False)
class Recipe:
    """A loaded recipe, as returned by `find`.

    Attributes:
        name: Name in tables: a shipped name, or that of the file.
        reference: Argument of `find` that loads it again: a shipped name or a file; or the name of an object.
        home: Module or object with its functions; for a shipped recipe, the name of its module.
        source: Source code of the file or object.
        neighbours: Name -> source code of each file next to it that it imports.
    """

    name: str
    reference: str
    home: Any
    source: str
    neighbours: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def code(self) -> Any:
        """The module or object with its functions."""
        return importlib.import_module(self.home) if self.shipped else self.home

    @property
    def shipped(self) -> bool:
        """Whether it is part of qnnkit."""
        return isinstance(self.home, str)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the syntax of its source and of the files it imports, without comments."""
        return digest({"": self.source, **self.neighbours})

    @cached_property
    def Settings(self) -> type[Settings]:
        """Settings class of the recipe, with a reference to it; qnnkit's fields keep their constraints."""
        base = getattr(self.code, "Settings", Settings)
        if not (isinstance(base, type) and issubclass(base, Settings)):
            raise self.refusal("Settings", "derive from qnnkit.Settings", base, "Add the base class.")
        # Fields have their docstrings already, and pydantic takes long to look for others.
        fields: dict[str, Any] = {"__cls_kwargs__": {"use_attribute_docstrings": False}}
        for name, custom in base.model_fields.items():
            kits = [kind.model_fields[name] for kind in base.__mro__ if is_kits(kind, name)]
            field = copy.copy([*kits, custom][0])
            field.default, field.default_factory = custom.default, custom.default_factory
            field.description = custom.description or field.description
            field.metadata = field.metadata + [rule for rule in custom.metadata if rule not in field.metadata]
            fields[name] = (field.annotation, field)
        derived = create_model(base.__name__, __base__=base, __module__=__name__, **fields)
        derived.model_config, derived.source = base.model_config, self
        return derived

    def settings(self, **changes: Any) -> Settings:
        """Returns its settings with some of them changed.

        Raises:
            ValueError: A name is unknown, or a value is invalid.
        """
        return self.Settings.of(changes)

    def check(self, settings: Settings) -> None:
        """Raises a ValueError if settings cannot be combined."""
        if hasattr(self.code, "check"):
            self._call("check", settings=settings)

    def load(self, settings: Settings) -> Any:
        """Returns the data.

        Raises:
            ValueError, OSError: They cannot be used.
        """
        with _seeded(settings.split_seed):  # so that random draws are the same at every load
            splits = self._call("load", settings=settings)
        if not all(hasattr(splits, name) for name in ("train", "validation", "test", "batches")):
            step = "Return data.of(settings), data.arrays(settings, x, y), or another dataset of qnnkit's."
            raise self.refusal("load", "return splits", type(splits).__name__, step)
        return splits

    def build(self, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """Returns an untrained net; its random numbers depend only on the seed."""
        with _seeded(seed):
            net = self._module("build", self._call("build", settings=settings, splits=splits, seed=seed))
        return net if settings.backend == "auto" else layers.on_backend(net, settings.backend)

    def task(self, settings: Settings) -> Any:
        """Returns the task of its nets."""
        if hasattr(self.code, "task"):
            return tasks.complete(self._call("task", settings=settings))
        return tasks.Classification.of(settings)

    def control_names(self, settings: Settings, splits: Any, seed: int) -> tuple[str, ...]:
        """Returns the names of the controls."""
        if hasattr(self.code, "controls"):
            return tuple(self._own_controls(settings, splits, seed))
        net = self.build(settings, splits, seed)
        fixed = () if layers.count_parameters(net)["classical"] else ("frozen_random", "no_quantum")
        return tuple(name for name in layers.control_names(net) if name not in fixed)  # nothing to train

    def control(self, name: str, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """Returns a control, with the same initial weights as the recipe's net.

        Raises:
            ValueError: There is no control of that name.
        """
        if hasattr(self.code, "controls"):
            offered = self._own_controls(settings, splits, seed)
            built = offered[checks.choice("control", name, offered)]
            with _seeded(seed), self.located_errors():
                return self._module(f"controls, {name!r}", built if isinstance(built, nn.Module) else built())
        net = self._called(settings, splits, seed)
        with self.located_errors():
            built = layers.control(net, name, seed=seed, example=splits.example())
        self._require_exchanged(name, built, splits)
        return built

    def _require_exchanged(self, name: str, net: nn.Module, splits: Any) -> None:
        """Checks that a control has replaced every circuit.

        Raises:
            ValueError: The net still runs a circuit that is not among its modules, or does not call a layer
                that replaces one.
        """
        called: list[nn.Module] = []
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
        with hook, _seeded(0), layers.evaluating(net), self.located_errors():
            layers.called(net, splits.example())
        inside = set(net.modules())
        unused = {each for each in inside if getattr(each, "replaces_circuit", False)} - {*called}
        outside = [each for each in called if isinstance(each, layers.QuantumLayer) and each not in inside]
        if outside or unused:
            rule = "replace every circuit of the net"
            step = "Store a QuantumLayer only as an attribute or in a ModuleList, and call the layer itself."
            raise self.refusal("controls", rule, name, step)

    def _own_controls(self, settings: Settings, splits: Any, seed: int) -> Mapping[str, Any]:
        """Returns {name: net, or a function that builds it} from the recipe's `controls`."""
        needs_net = "net" in inspect.signature(self.code.controls).parameters
        net = self._called(settings, splits, seed) if needs_net else None
        with _seeded(seed):
            offered = self._call("controls", net=net, settings=settings, splits=splits, seed=seed)
        names = offered if isinstance(offered, Mapping) else [""]
        if not all(_is_name(name) and callable(offered[name]) for name in names):
            rule = 'return {"name": net}, in letters, digits, `_`, `.`, `-`, and not as hybrid or reference'
            step = "A value is a net, or a function that makes one."
            raise self.refusal("controls", rule, [*names], step)
        return offered

    def _called(self, settings: Settings, splits: Any, seed: int) -> nn.Module:
        """Returns the net after one call, because controls need the shapes of the circuit's inputs."""
        if settings.device == "meta":  # a net without weights cannot run
            settings = settings.model_copy(update={"device": "auto"})
        net = self.build(settings, splits, seed)
        with torch.no_grad(), self.located_errors():
            layers.called(net.eval(), splits.example())
        return net.train()

    # --- the user's code ------------------------------------------------------------------------------------

    def _call(self, part: str, **offered: Any) -> Any:
        function = getattr(self.code, part)
        parameters = inspect.signature(function).parameters.values()
        needed = {x.name for x in parameters if x.default is x.empty and "VAR" not in x.kind.name}
        if unknown := needed - offered.keys():
            step = f"It may take {', '.join(offered)}."
            raise self.wrong(f"Function `{part}` must not take an argument `{unknown.pop()}`. {step}")
        with self.located_errors():
            return tasks.asked(function, **offered)

    @contextlib.contextmanager
    def located_errors(self) -> Iterator[None]:
        """Adds file and line to errors of a user's recipe; errors of qnnkit itself pass unchanged."""
        try:
            yield
        except Exception as error:
            if self.shipped or isinstance(error, RecipeError) or not user_frames(error):
                raise
            raise located(self.reference, error) from error

    def _module(self, part: str, net: Any) -> nn.Module:
        if not isinstance(net, nn.Module):
            raise self.refusal(part, "return a torch.nn.Module", type(net).__name__, "Return the net.")
        return net

    def refusal(self, part: str, rule: str, value: Any, step: str) -> RecipeError:
        """Returns an error about a part of the recipe; see `checks.message`."""
        return self.wrong(checks.message(part, rule, value, step))

    def wrong(self, sentence: str) -> RecipeError:
        """Returns an error about the recipe."""
        return RecipeError(f"Recipe `{self.reference}`: {sentence}")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds torch, NumPy and Python inside the context; the caller's generators do not change."""
    with own_generators():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        np.random.seed(seed)  # noqa: NPY002  a user's recipe may draw from it
        random.seed(seed)
        yield


def _is_name(name: Any) -> bool:
    """Returns whether a control may have this name, which becomes part of file names."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name))) and name not in MAIN_NETS
