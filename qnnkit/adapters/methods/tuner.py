"""What all quantum adapters share: their common settings, and how PEFT puts them on linear layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, _maybe_include_all_linear_layers
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn

from qnnkit import checks
from qnnkit.adapters.targets import matched_by, sizes_of


@dataclass
class AdapterConfig(PeftConfig):
    """The settings that every quantum adapter has."""

    target_modules: list[str] | set[str] | str | None = field(
        default=None, metadata={"help": "Last parts of names, a regular expression, or all-linear."}
    )
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "Left out of these."})
    layers_to_transform: list[int] | int | None = field(
        default=None, metadata={"help": "Numbers of the layers that are adapted; all by default."}
    )
    layers_pattern: list[str] | str | None = field(
        default=None, metadata={"help": "Name of the list of layers that these numbers count."}
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "Modules that are trained and saved as a whole."}
    )
    n_layers: int = field(default=4, metadata={"help": "Depth of the circuit."})
    entangled: bool = field(default=True, metadata={"help": "Whether it has entangling gates."})
    train_circuit: bool = field(
        default=True, metadata={"help": "Whether its angles train, or stay as the seed drew them."}
    )
    seed: int = field(default=0, metadata={"help": "Fixes where the angles begin."})

    kind: ClassVar[str] = ""
    """The adapter's name."""
    counts: ClassVar[tuple[str, ...]] = ("n_layers",)
    """Settings that are 1 or more."""

    def __post_init__(self) -> None:
        from peft.utils.peft_types import PeftType

        super().__post_init__()
        self.peft_type = PeftType(self.kind.upper())
        if isinstance(self.target_modules, list):
            self.target_modules = set(self.target_modules)
        for name in self.counts:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(checks.message(name, "be a whole number above 0", value, "Use 1 or more."))


class Angles(nn.ParameterDict):
    """Angles of circuits by adapter, in radians; `layers.quantum_parameters` knows them by `of_circuit`."""

    of_circuit = True


class AdapterLayer(nn.Module, BaseTunerLayer):
    """A frozen linear layer with adapters beside it.

    Args:
        base_layer: The layer, an `nn.Linear` or transformers' Conv1D.
    """

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        self.base_layer = base_layer
        sizes = sizes_of(self.get_base_layer())
        assert sizes is not None  # `AdapterModel` has looked
        self.in_features, self.out_features = sizes
        self._disable_adapters, self.merged_adapters = False, []
        self.settings: dict[str, Any] = {}
        """Config by adapter."""

    @property
    def place(self) -> dict[str, Any]:
        """Device and dtype of what is trained here: float32 at least, whatever the frozen weights have."""
        weight = self.get_base_layer().weight
        precise = weight.dtype == torch.float64
        return {"device": weight.device, "dtype": torch.float64 if precise else torch.float32}

    def add(self, name: str, config: Any, key: str) -> None:
        """Adds an adapter.

        Args:
            name: Of the adapter.
            config: Its settings.
            key: Name of the layer in the model; initial weights are drawn from it and the seed.
        """
        raise NotImplementedError

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        return False


class AdapterModel(BaseTuner):
    """A model with a quantum adapter on some of its linear layers."""

    tuner_layer_cls: type[AdapterLayer]
    target_module_mapping = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    def _prepare_model(self, peft_config: Any, model: nn.Module) -> None:
        matched_by(model, peft_config)  # raises where there are none
        _maybe_include_all_linear_layers(peft_config, model)

    def _make_layer(self, target: nn.Module) -> AdapterLayer:
        return self.tuner_layer_cls(target)

    def _create_and_replace(
        self,
        peft_config: Any,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
        **others: Any,
    ) -> None:
        if isinstance(target, self.tuner_layer_cls):
            target.add(adapter_name, peft_config, current_key)
            target.set_adapter(target.active_adapters)
            return
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if sizes_of(base) is None:
            rule = "name linear layers only"
            told = f"{current_key} ({type(base).__name__})"
            raise TypeError(checks.message("target_modules", rule, told, "Leave this name out."))
        layer = self._make_layer(target)
        layer.add(adapter_name, peft_config, current_key)
        layer.set_adapter(adapter_name)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)
