"""Circuits that compute LoRA's weights, as parametrizations of PEFT's `lora_A` and `lora_B`.

Each weight of an adapter is a `Source`, registered with `torch.nn.utils.parametrize`. All sources of an
adapter are computed together, in batches.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from qnnkit import checks
from qnnkit.adapters import orthogonal
from qnnkit.data.batches import keyed_generator

QUANTUM_PEFT = "quantum_peft"
WEIGHTS = "adapter_model.safetensors"
"""PEFT's file of an adapter's weights; those computed by circuits have LoRA's names."""
CIRCUIT = "circuit.safetensors"
"""File next to it with the circuits' angles, and what is needed to continue training them."""
Sizes = Mapping[str, tuple[int, int]]
"""Name of an adapted layer -> (in_features, out_features), in the order of the model."""


@dataclass
class QuantumPeftConfig:
    """Settings of `quantum_peft`: W + scale * sum over terms of U diag(lambda) V^T.

    U and V are the first r columns of circuits on ceil(log2(dim)) wires, cropped to dim rows. A layer has
    n_terms * ((n_layers + 1) * (wires of U + wires of V) + r) weights; lambda is initially 0.

    Args:
        n_layers: Depth of the circuits.
        r: Rank of one term.
        n_terms: Number of circuit pairs per layer; LoRA's rank is r * n_terms.
        scale: Factor of the update.
        entangled: Whether the circuit has entangling gates.
        train_circuit: Whether to train the angles; if not, they keep their initial values.
        seed: Seed of the initial angles.
        target_modules: Adapted layers, as in PEFT's LoraConfig: names, or a regular expression.
        task_type: As in PEFT's LoraConfig, such as "CAUSAL_LM"; None for other models.

    Raises:
        ValueError: `n_layers`, `r` or `n_terms` is not a whole number above 0.

    Reference: Koike-Akino et al. (2025), arXiv:2503.05431.
    """

    n_layers: int = 4
    r: int = 4
    n_terms: int = 1
    scale: float = 8.0
    entangled: bool = True
    train_circuit: bool = True
    seed: int = 0
    target_modules: Any = None
    task_type: str | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "r", "n_terms"):
            checks.positive(name, getattr(self, name))

    def lora(self) -> Any:
        """Returns the LoraConfig of the weights that the circuits compute; the weights include the scale."""
        from peft import LoraConfig

        same: dict[str, Any] = {"target_modules": self.target_modules, "task_type": self.task_type}
        return LoraConfig(r=self.r * self.n_terms, lora_alpha=self.r * self.n_terms, **same)


def matched(n_weights: int, sizes: Sizes, options: Mapping[str, Any]) -> dict[str, int]:
    """Returns settings with about `n_weights` weights, keeping those in `options`; the most usual if tied.

    Deep circuits with a low rank per term are preferred: a rank costs time in every layer call, an angle does
    not.
    """
    wires = sum(orthogonal.n_wires(dim) for pair in sizes.values() for dim in pair)
    least = min(dim for pair in sizes.values() for dim in pair)
    depths = [options["n_layers"]] if "n_layers" in options else range(1, 11)
    ranks = [options["r"]] if "r" in options else range(1, min(8, least) + 1)
    nearest = {}
    for n_layers, r in itertools.product(depths, ranks):
        term = (n_layers + 1) * wires + r * len(sizes)
        n_terms = options.get("n_terms", max(1, round(n_weights / term)))
        # Counts whose errors differ by less than 5 % of n_weights are ties.
        distance = int(abs(n_terms * term / n_weights - 1) / 0.05), 10 * abs(n_layers - 8) + abs(r - 2)
        nearest.setdefault(distance, {"n_layers": n_layers, "r": r, "n_terms": n_terms})
    return nearest[min(nearest)]


class Circuits:
    """All sources of one adapter.

    Args:
        config: Settings of the adapter.
        sizes: The adapted layers.
        like: A weight of LoRA, whose dtype and device the sources take.
    """

    def __init__(self, config: QuantumPeftConfig, sizes: Sizes, like: Tensor):
        self.config, self.sizes = config, dict(sizes)
        self.cached: dict[bool, dict[Source, Tensor]] | None = None
        """Cache inside `adapters.once`: whether gradients are enabled -> the weights."""
        self.sources = [Source(self, layer, side, like) for layer in sizes for side in ("lora_A", "lora_B")]

    def weight(self, source: Source) -> Tensor:
        """Returns the LoRA weight of one source."""
        if self.cached is None:
            return self._compute([source])[source]
        mode = torch.is_grad_enabled()
        if mode not in self.cached:
            self.cached[mode] = self._compute(self.sources)
        return self.cached[mode][source]

    def _compute(self, sources: Sequence[Source]) -> dict[Source, Tensor]:
        # In float32, as bfloat16 resolves an angle near pi only to 0.016 radians. Gradient checkpointing must
        # not record it: a checkpointed part may compute it in its forward pass but not in its recomputation.
        device = sources[0].angles.weights.device.type
        with (
            torch.autocast(device, enabled=False),
            saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        ):
            groups: dict[Any, list[Source]] = {}
            for source in sources:  # circuits with equally many wires form a batch, across layers
                weights = source.angles.weights
                groups.setdefault((weights.shape[-1], weights.device), []).append(source)
            computed: dict[Source, Tensor] = {}
            for group in groups.values():
                angles = torch.cat([source.angles.weights for source in group])  # (circuits, rounds, wires)
                angles = angles.to(torch.promote_types(angles.dtype, torch.float32))
                columns = orthogonal.columns(angles, self.config.r, entangled=self.config.entangled)
                columns = columns.unflatten(0, (len(group), -1)).transpose(1, 2).flatten(2)
                computed |= {one: one.scaled(matrix) for one, matrix in zip(group, columns, strict=True)}
            return computed

    def save(self, path: Path) -> None:
        """Writes the angles, the settings, and the sizes of the adapted layers in the order of the model."""
        from safetensors.torch import save_file

        about = {"adapter": QUANTUM_PEFT, "settings": vars(self.config), "layers": self.sizes}
        text = {"circuit": json.dumps(about, default=sorted)}  # PEFT turns targets into sets
        save_file(nn.ModuleList(self.sources).state_dict(), path, text)

    @classmethod
    def read(cls, folder: Path) -> Circuits:
        """Returns the circuits that `save` wrote to an adapter's folder.

        Raises:
            Exception: They do not reproduce the weights next to them, or a file is damaged; of any type.
        """
        from safetensors import safe_open
        from safetensors.torch import load_file

        with safe_open(folder / CIRCUIT, framework="pt") as file:
            about = json.loads(file.metadata()["circuit"])
        weights, angles = load_file(folder / WEIGHTS), load_file(folder / CIRCUIT)
        settings = {name: value for name, value in about["settings"].items() if value is not None}
        circuits = cls(QuantumPeftConfig(**settings), about["layers"], next(iter(angles.values())))
        nn.ModuleList(circuits.sources).load_state_dict(angles)
        with torch.no_grad():
            for source, matrix in circuits._compute(circuits.sources).items():
                weight = weights[f"base_model.model.{source.layer}.{source.side}.weight"]
                if not torch.allclose(matrix, weight, rtol=1e-3, atol=1e-4 * float(weight.abs().max())):
                    raise ValueError(f"it does not reproduce {source.side} of {source.layer}")
        return circuits


class Angles(nn.Module):
    """Angles of circuits in radians: a parameter, or a buffer if they are not trained."""

    of_circuit = True
    """Marks a circuit for `layers.quantum_parameters`."""

    def __init__(self, weights: nn.Parameter | nn.Buffer):
        super().__init__()
        self.weights = weights


class Source(nn.Module):
    """A parametrization without an original tensor: one weight of LoRA, V^T or U diag(scale * lambda).

    Args:
        circuits: The circuits of the adapter.
        layer: Name of the adapted layer in the base model.
        side: "lora_A", of shape (rank, in_features), or "lora_B", of shape (out_features, rank).
        like: Tensor whose dtype and device are used.
    """

    def __init__(self, circuits: Circuits, layer: str, side: str, like: Tensor):
        super().__init__()
        self.circuits, self.layer, self.side = circuits, layer, side
        config, least = circuits.config, min(circuits.sizes[layer])
        if config.r > least:
            rule = f"be at most {least}, the smaller side of {layer}"
            raise ValueError(checks.message("r", rule, config.r, "Raise n_terms instead."))
        self.dim = circuits.sizes[layer][side == "lora_B"]
        shape = config.n_terms, config.n_layers + 1, orthogonal.n_wires(self.dim)
        generator = keyed_generator(config.seed, layer, "in" if side == "lora_A" else "out")
        drawn = (2 * math.pi * torch.rand(*shape, generator=generator)).to(like)
        self.angles = Angles(nn.Parameter(drawn) if config.train_circuit else nn.Buffer(drawn))
        if side == "lora_B":
            self.strengths = nn.Parameter(torch.zeros(config.r * config.n_terms).to(like))

    def scaled(self, columns: Tensor) -> Tensor:
        """Returns the LoRA weight for the circuits' columns, which are of shape (2**n_wires, rank)."""
        matrix = columns[: self.dim]
        if self.side == "lora_A":
            return matrix.t()
        return matrix * (self.circuits.config.scale * self.strengths.to(matrix.dtype))

    def forward(self) -> Tensor:
        return self.circuits.weight(self)

    def right_inverse(self, weight: Tensor) -> tuple[()]:
        """Returns no original tensor: LoRA's initial weight is dropped."""
        return ()
