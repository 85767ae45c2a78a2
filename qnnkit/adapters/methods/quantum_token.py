"""A circuit for every token, beside a frozen linear layer: for research, it cannot be merged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.adapters.methods.tuner import AdapterConfig, AdapterLayer, AdapterModel
from qnnkit.data.sample import seeded


@dataclass
class QuantumTokenConfig(AdapterConfig):
    """Settings of `quantum_token`: what the frozen layer gives, plus scale * up(circuit(pi tanh(down(x)))).

    `down` takes a token's features to the wires, `up` the expectation values of Z back; `up` is 0 at first.
    A layer has n_qubits * (in_features + out_features) weights beside the circuit's.
    """

    n_qubits: int = field(default=4, metadata={"help": "Wires of the circuit."})
    n_layers: int = field(default=2, metadata={"help": "Depth of the circuit."})
    ansatz: str = field(default="data_reuploading", metadata={"help": "Entry of qnnkit.CIRCUITS."})
    scale: float = field(default=1.0, metadata={"help": "Factor of what is added."})
    backend: str = field(default="auto", metadata={"help": "As of qnnkit.QuantumLayer."})

    kind: ClassVar[str] = "quantum_token"
    counts: ClassVar[tuple[str, ...]] = ("n_layers", "n_qubits")


class QuantumTokenLinear(AdapterLayer):
    """A linear layer with `quantum_token` adapters."""

    adapter_layer_names = ("quantum_token_down", "quantum_token_circuit", "quantum_token_up")
    other_param_names = ("quantum_token_fixed", "settings")

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.quantum_token_down, self.quantum_token_up = nn.ModuleDict(), nn.ModuleDict()
        self.quantum_token_circuit, self.quantum_token_fixed = nn.ModuleDict(), nn.ModuleDict()

    def add(self, name: str, config: QuantumTokenConfig, key: str) -> None:
        from qnnkit import circuits  # PennyLane is not needed to know of the adapter
        from qnnkit.layers import QuantumLayer

        self.settings[name] = config
        n, generator = config.n_qubits, seeded(config.seed, key, "token")
        made = circuits.build(config.ansatz, n_qubits=n, n_layers=config.n_layers, seed=config.seed)
        qnode: Any = made[0] if config.entangled else circuits.drop_entanglement(made[0])
        shapes = made[1]
        [(argument, shape)] = shapes.items()
        angles = (2 * math.pi * torch.rand(shape, generator=generator)).to(**self.place)
        circuit = QuantumLayer(qnode, shapes, {argument: angles}, backend=config.backend)
        bound = 1 / math.sqrt(self.in_features)  # torch.nn.Linear's
        drawn = bound * (2 * torch.rand(n, self.in_features, generator=generator) - 1)
        self.quantum_token_down[name] = _linear(drawn.to(**self.place))
        self.quantum_token_up[name] = _linear(torch.zeros(self.out_features, n, **self.place))
        held = self.quantum_token_circuit if config.train_circuit else self.quantum_token_fixed
        held[name] = circuit.requires_grad_(config.train_circuit)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Raises NotImplementedError: no matrix does what a circuit of every token does."""
        raise cannot_merge()

    def unmerge(self) -> None:
        """Raises NotImplementedError: nothing was merged."""
        raise cannot_merge()

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        """What the frozen layer gives, and the active adapters add; of shape (..., out_features)."""
        result = self.base_layer(x, *given, **named)
        if self.disable_adapters:
            return result
        for name in self.active_adapters:
            if name in self.settings:
                config = self.settings[name]
                held = self.quantum_token_circuit if config.train_circuit else self.quantum_token_fixed
                down: Any = self.quantum_token_down[name]
                with torch.autocast(x.device.type, enabled=False):  # what becomes angles wants all digits
                    angles = down(x.to(down.weight.dtype))
                values = held[name](math.pi * torch.tanh(angles))  # (..., n_qubits)
                added = self.quantum_token_up[name](values)
                result = result + (config.scale * added).to(result.dtype)
        return result


class QuantumTokenModel(AdapterModel):
    """A model with `quantum_token` adapters."""

    prefix: str = "quantum_token_"
    tuner_layer_cls = QuantumTokenLinear

    def _check_merge_allowed(self) -> None:
        raise cannot_merge()


def cannot_merge() -> NotImplementedError:
    """The refusal to merge."""
    rule, step = "be one that is a matrix to be merged", "Keep the adapter, or train quantum_peft or qpa."
    return NotImplementedError(checks.message("adapter", rule, "quantum_token", step))


def _linear(weight: Tensor) -> nn.Linear:
    """A linear layer of this weight, without a bias; nothing is drawn from torch's generator."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer
