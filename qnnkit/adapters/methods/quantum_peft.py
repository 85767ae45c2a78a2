"""Low-rank updates between columns of orthogonal circuits, in the manner of Quantum-PEFT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from peft.tuners._buffer_dict import BufferDict
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.adapters import circuit
from qnnkit.adapters.methods.generated import GeneratedLayer, GeneratedModel, Pair
from qnnkit.adapters.methods.tuner import AdapterConfig, Angles
from qnnkit.data.sample import seeded


@dataclass
class QuantumPeftConfig(AdapterConfig):
    """Settings of `quantum_peft`: W + scale * sum over terms of U diag(lambda) V^T.

    U and V are the first r columns of circuits over ceil(log2(dim)) wires, cropped to dim rows. A layer has
    n_terms * ((n_layers + 1) * (wires of U + wires of V) + r) weights; lambda is 0 at first.

    Reference: Koike-Akino et al. (2025), arXiv:2503.05431.
    """

    r: int = field(default=4, metadata={"help": "Rank of a term."})
    n_terms: int = field(default=1, metadata={"help": "Pairs of circuits a layer; the rank is r * n_terms."})
    scale: float = field(default=8.0, metadata={"help": "Factor of the update."})

    kind: ClassVar[str] = "quantum_peft"
    counts: ClassVar[tuple[str, ...]] = ("n_layers", "r", "n_terms")


class QuantumPeftLinear(GeneratedLayer):
    """A linear layer with `quantum_peft` adapters."""

    adapter_layer_names = ("quantum_peft_angles_in", "quantum_peft_angles_out", "quantum_peft_lambda")
    other_param_names = ("quantum_peft_fixed_in", "quantum_peft_fixed_out", "settings")

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.quantum_peft_angles_in, self.quantum_peft_angles_out = Angles(), Angles()
        self.quantum_peft_fixed_in = BufferDict(persistent=True)
        self.quantum_peft_fixed_out = BufferDict(persistent=True)
        self.quantum_peft_lambda = nn.ParameterDict()

    def add(self, name: str, config: QuantumPeftConfig, key: str) -> None:
        """Adds an adapter; see `AdapterLayer.add`.

        Raises:
            ValueError: The rank exceeds the sides of the layer.
        """
        least = min(self.in_features, self.out_features)
        if config.r > least:
            rule = f"be at most {least}, the smaller side of {key}"
            raise ValueError(checks.message("r", rule, config.r, "Raise n_terms instead."))
        self.settings[name] = config
        for side, dim in (("in", self.in_features), ("out", self.out_features)):
            shape = config.n_terms, config.n_layers + 1, circuit.n_wires(dim)
            drawn = 2 * math.pi * torch.rand(shape, generator=seeded(config.seed, key, side))
            held = f"quantum_peft_{'angles' if config.train_circuit else 'fixed'}_{side}"
            angles = drawn.to(**self.place)
            getattr(self, held)[name] = nn.Parameter(angles) if config.train_circuit else angles
        zeros = torch.zeros(config.n_terms * config.r, **self.place)
        self.quantum_peft_lambda[name] = nn.Parameter(zeros)

    def angles(self, side: str, name: str) -> Tensor:
        """Of shape (n_terms, n_layers + 1, n_wires), for side "in" (V) or "out" (U)."""
        kind = "angles" if self.settings[name].train_circuit else "fixed"
        return getattr(self, f"quantum_peft_{kind}_{side}")[name]

    @classmethod
    def generate(cls, name: str, layers: Sequence[QuantumPeftLinear]) -> list[Pair]:
        """Circuits of as many wires are one batch, whichever layers and sides they belong to."""
        config = layers[0].settings[name]
        groups: dict[Any, list[tuple[tuple[int, str], Tensor]]] = {}
        for place, layer in enumerate(layers):
            for side in ("in", "out"):
                angles = layer.angles(side, name)
                angles = angles.to(torch.promote_types(angles.dtype, torch.float32))
                groups.setdefault((angles.shape[-1], angles.device), []).append(((place, side), angles))
        found: dict[tuple[int, str], Tensor] = {}
        for group in groups.values():
            angles = torch.cat([angles for _, angles in group])  # (sides * n_terms, n_layers + 1, n_wires)
            columns = circuit.columns(angles, config.r, entangled=config.entangled)
            columns = columns.unflatten(0, (len(group), -1)).transpose(1, 2).flatten(2)
            found |= {place: one for (place, _), one in zip(group, columns, strict=True)}  # (2**n, rank)
        pairs = []
        for place, layer in enumerate(layers):
            down, up = found[place, "in"][: layer.in_features], found[place, "out"][: layer.out_features]
            strengths = config.scale * layer.quantum_peft_lambda[name].to(up.dtype)
            pairs.append((down, (up * strengths).t()))
        return pairs


class QuantumPeftModel(GeneratedModel):
    """A model with `quantum_peft` adapters."""

    prefix: str = "quantum_peft_"
    tuner_layer_cls = QuantumPeftLinear
