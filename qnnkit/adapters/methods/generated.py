"""Low-rank updates that circuits generate: once a step for the whole model, not once for every layer call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft.tuners.tuners_utils import check_adapters_to_merge
from torch import Tensor, nn

from qnnkit.adapters.methods.tuner import AdapterLayer, AdapterModel

Pair = tuple[Tensor, Tensor]
"""Matrices (in_features, rank) and (rank, out_features) whose product is added to the frozen one."""


class Generated:
    """The matrices of all adapted layers of one model, made before its forward pass and kept through it.

    With gradients they are made anew for every forward pass; a layer that is computed again on the way back
    (gradient checkpointing, in its non-reentrant form) meets the same ones. Without, they are made again only
    when weights have changed, so that generating text costs no circuit a token.

    Args:
        root: The base model; it is told by hooks when its forward pass begins and ends.
    """

    def __init__(self, root: nn.Module):
        self.root, self.inside = root, 0
        self.made: dict[tuple[str, bool], tuple[Any, dict[int, Pair]]] = {}
        """(adapter, with gradients) -> what it was made from, and the pairs by id of layer."""
        begin = root.register_forward_pre_hook(self.begin)
        end = root.register_forward_hook(self.end, always_call=True)
        self.hooks = begin.id, end.id
        self.held: list[GeneratedLayer] | None = None
        """The adapted layers, while they are taken out of the model one by one."""

    @classmethod
    def of(cls, root: nn.Module) -> Generated:
        """That of a model, which an earlier adapter may have brought."""
        there = (layer.generated for layer in generated_layers(root) if layer.generated.root is root)
        return next(there, None) or cls(root)

    def layers(self) -> list[GeneratedLayer]:
        """The adapted layers, in the order of the model."""
        return generated_layers(self.root) if self.held is None else self.held

    def begin(self, module: nn.Module, inputs: Any) -> None:
        """Makes what the forward pass will ask for."""
        if torch.is_grad_enabled():  # weights may have moved since what was made without gradients
            self.made = {key: made for key, made in self.made.items() if key[1]}
        layers = self.layers()
        used = [layer for layer in layers if not (layer.disable_adapters or layer.merged)]
        for name in dict.fromkeys(name for layer in used for name in layer.active_adapters):
            self._make(name, [layer for layer in layers if name in layer.settings])
        self.inside += 1

    def end(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.inside = max(0, self.inside - 1)

    def pair(self, layer: GeneratedLayer, name: str) -> Pair:
        """The matrices of one layer; made now if nobody has."""
        going_back = torch._C._current_graph_task_id() != -1
        _, pairs = self.made.get((name, torch.is_grad_enabled()), (None, {}))
        if id(layer) in pairs and (self.inside or going_back):
            return pairs[id(layer)]
        layers = [each for each in self.layers() if name in each.settings]
        return self._make(name, layers if any(each is layer for each in layers) else [layer])[id(layer)]

    def _make(self, name: str, layers: Sequence[GeneratedLayer]) -> dict[int, Pair]:
        if not layers:
            return {}
        weights = [weight for layer in layers for weight in layer.weights(name)]
        differentiated = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        state = None
        if not differentiated:
            state = torch.is_inference_mode_enabled(), [(each.data_ptr(), each._version) for each in weights]
            before, pairs = self.made.get((name, torch.is_grad_enabled()), (None, {}))
            if before == state and pairs.keys() >= {id(layer) for layer in layers}:
                return pairs
        kind = weights[0].device.type
        # A float32 island: bfloat16 knows an angle near pi only to 0.016 radians.
        with torch.autocast(kind, enabled=False), torch.set_grad_enabled(differentiated):
            found = layers[0].generate(name, layers)
        pairs = {id(layer): pair for layer, pair in zip(layers, found, strict=True)}
        self.made[name, torch.is_grad_enabled()] = state, pairs
        return pairs

    def remove(self) -> None:
        """Takes the hooks off the model."""
        begin, end = self.hooks
        self.root._forward_pre_hooks.pop(begin, None)
        self.root._forward_hooks.pop(end, None)
        self.root._forward_hooks_always_called.pop(end, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Generated:
        memo[id(self)] = other = type(self).__new__(type(self))
        other.inside, other.made, other.held = 0, {}, None
        other.hooks = self.hooks  # hooks keep their numbers in a copy
        other.root = copy.deepcopy(self.root, memo)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "inside": 0, "made": {}}


class GeneratedLayer(AdapterLayer):
    """A linear layer beside which runs a low-rank update: base(x) + (x down) up.

    Args:
        base_layer: The frozen layer.
        generated: Of the model that it belongs to.
    """

    def __init__(self, base_layer: nn.Module, generated: Generated):
        super().__init__(base_layer)
        self.generated = generated

    @classmethod
    def generate(cls, name: str, layers: Sequence[Any]) -> Iterable[Pair]:
        """The matrices of one adapter for all its layers, in their order."""
        raise NotImplementedError

    def weights(self, name: str) -> list[Tensor]:
        """What the matrices of an adapter are made from, trained or not."""
        held = (getattr(self, each) for each in self.adapter_layer_names + self.other_param_names)
        found = (each[name] for each in held if name in each)
        return [each for each in found if isinstance(each, Tensor)]

    def get_delta_weight(self, adapter: str) -> Tensor:
        """What the adapter adds to the frozen weight, in that weight's shape."""
        down, up = self.generated.pair(self, adapter)
        delta = down @ up  # (in_features, out_features)
        return delta.t() if isinstance(self.get_base_layer(), nn.Linear) else delta

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Adds the active adapters to the frozen weight.

        Args:
            safe_merge: Whether to refuse what is not finite.
            adapter_names: Others than the active ones.

        Raises:
            ValueError: Asked for by `safe_merge`.
        """
        for name in check_adapters_to_merge(self, adapter_names):
            if name in self.settings:
                weight: Any = self.get_base_layer().weight
                with torch.no_grad():
                    merged = (weight + self.get_delta_weight(name)).to(weight.dtype)
                if safe_merge and not torch.isfinite(merged).all():
                    raise ValueError(f"NaNs detected in the merged weights: adapter {name} seems broken.")
                weight.data = merged
                self.merged_adapters.append(name)

    def unmerge(self) -> None:
        """Takes what was merged out of the frozen weight again."""
        if not self.merged:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
        while self.merged_adapters:
            name = self.merged_adapters.pop()
            weight: Any = self.get_base_layer().weight
            with torch.no_grad():
                weight.data = (weight - self.get_delta_weight(name)).to(weight.dtype)

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        """What the frozen layer gives, and the active adapters add; of shape (..., out_features)."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        result = self.base_layer(x, *given, **named)
        if self.disable_adapters or self.merged:
            return result
        for name in self.active_adapters:
            if name in self.settings:
                down, up = self.generated.pair(self, name)
                result = result + (x.to(down.dtype) @ down @ up).to(result.dtype)
        return result


class GeneratedModel(AdapterModel):
    """A model whose adapted layers are given generated matrices."""

    generated: Generated

    def _prepare_model(self, peft_config: Any, model: nn.Module) -> None:
        super()._prepare_model(peft_config, model)
        self.generated = Generated.of(model)

    def _make_layer(self, target: nn.Module) -> AdapterLayer:
        return self.tuner_layer_cls(target, self.generated)  # pyright: ignore[reportCallIssue]

    def _unload_and_optionally_merge(self, *given: Any, **named: Any) -> Any:
        self.generated.held = self.generated.layers()
        try:
            model = super()._unload_and_optionally_merge(*given, **named)
        finally:
            self.generated.held = None
        self.generated.remove()
        return model


def generated_layers(root: nn.Module) -> list[GeneratedLayer]:
    """The adapted layers of a model, in its order."""
    return [module for module in root.modules() if isinstance(module, GeneratedLayer)]
