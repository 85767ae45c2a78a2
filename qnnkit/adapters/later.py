"""Registration with PEFT, as soon as peft is imported, and not before: it takes seconds to import."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = ("quantum_peft", "qpa", "quantum_token")
"""The adapters, as PEFT knows them."""


def register() -> None:
    """Makes the quantum adapters known to PEFT; a second call does nothing.

    Raises:
        ImportError: peft is not installed, or too old to take methods of others (before 0.15).
    """
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
    from peft.utils import register_peft_method

    for name in NAMES:
        _extend_types(name.upper())
    from qnnkit.adapters.methods.qpa import QPAConfig, QPAModel
    from qnnkit.adapters.methods.quantum_peft import QuantumPeftConfig, QuantumPeftModel
    from qnnkit.adapters.methods.quantum_token import QuantumTokenConfig, QuantumTokenModel

    classes: list[tuple[type, type]] = [
        (QuantumPeftConfig, QuantumPeftModel),
        (QPAConfig, QPAModel),
        (QuantumTokenConfig, QuantumTokenModel),
    ]
    for name, (config, model) in zip(NAMES, classes, strict=True):
        if name.upper() not in PEFT_TYPE_TO_TUNER_MAPPING:
            register_peft_method(name=name, config_cls=config, model_cls=model)


def register_later() -> None:
    """Registers now if peft is imported already, else right after somebody imports it.

    Until then one finder stands in `sys.meta_path`, which answers for peft alone: Python has no other way to
    learn of an import, and PEFT none to find the methods of others by itself.
    """
    if "peft" in sys.modules:
        _try()
    elif not any(isinstance(finder, _AfterPeft) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterPeft())


class _AfterPeft(MetaPathFinder):
    """Finds peft where it is, and has the adapters registered once it is loaded."""

    def __init__(self) -> None:
        self.asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "peft" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _try()

            loader.exec_module = exec_module
        return spec


def _try() -> None:
    """Registers, or says why not: importing peft never fails for it."""
    try:
        register()
    except Exception as error:
        warnings.warn(f"qnnkit's adapters are not known to PEFT: {error}", stacklevel=2)


def _extend_types(name: str) -> None:
    """Adds a name to PEFT's enumeration of methods, which registering asks for and offers no way to."""
    from peft.utils.peft_types import PeftType

    if name in PeftType.__members__:
        return
    member: Any = str.__new__(PeftType, name)
    member._name_, member._value_ = name, name
    type.__setattr__(PeftType, name, member)
    PeftType._member_map_[name] = member
    PeftType._value2member_map_[name] = member
    PeftType._member_names_.append(name)
