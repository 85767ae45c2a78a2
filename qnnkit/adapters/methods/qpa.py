"""Low-rank updates written by one circuit and a small net, in the manner of quantum parameter adaptation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from peft.tuners._buffer_dict import BufferDict
from torch import Tensor, nn

from qnnkit.adapters import circuit
from qnnkit.adapters.methods.generated import GeneratedLayer, GeneratedModel, Pair, generated_layers
from qnnkit.adapters.methods.tuner import AdapterConfig, Angles
from qnnkit.adapters.targets import matched_by
from qnnkit.data.sample import seeded


@dataclass
class QPAConfig(AdapterConfig):
    """Settings of `qpa`: W + scale * B diag(gain) A, where A and B of all layers are generated together.

    All numbers of A and B stand in a row, in chunks. Chunk k belongs to basis state k of a circuit over
    ceil(log2(number of chunks)) wires; a net of one hidden layer maps the bits of k and the state's
    probability to the chunk. There are (n_layers + 1) * n_wires angles, hidden * (n_wires + 2) +
    chunk * (hidden + 1) weights of the net, and r gains a layer, which are 0 at first.

    Reference: Liu et al. (2025), arXiv:2410.09846.
    """

    r: int = field(default=4, metadata={"help": "Rank of the update."})
    chunk: int = field(default=64, metadata={"help": "Numbers that one basis state stands for."})
    hidden: int = field(default=16, metadata={"help": "Width of the net from states to chunks."})
    scale: float = field(default=8.0, metadata={"help": "Factor of the update."})

    kind: ClassVar[str] = "qpa"
    counts: ClassVar[tuple[str, ...]] = ("n_layers", "r", "chunk", "hidden")


def chunks_and_wires(n_numbers: int, chunk: int) -> tuple[int, int]:
    """How many chunks hold so many numbers, and the wires whose basis states number as many.

    Example:
        >>> chunks_and_wires(8192, 64), chunks_and_wires(8193, 64)
        ((128, 7), (129, 8))
    """
    n_chunks = math.ceil(n_numbers / chunk)
    return n_chunks, circuit.n_wires(n_chunks)


class QPALinear(GeneratedLayer):
    """A linear layer with `qpa` adapters; the first of an adapter holds the circuit and the net of all."""

    adapter_layer_names = ("qpa_angles", "qpa_inner", "qpa_outer", "qpa_gain")
    other_param_names = ("qpa_fixed", "settings")

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.qpa_angles, self.qpa_fixed = Angles(), BufferDict(persistent=True)
        self.qpa_inner, self.qpa_outer = nn.ParameterDict(), nn.ParameterDict()
        self.qpa_gain = nn.ParameterDict()

    def add(self, name: str, config: QPAConfig, key: str) -> None:
        self.settings[name] = config
        self.qpa_gain[name] = nn.Parameter(torch.zeros(config.r, **self.place))

    def own(self, name: str, n_numbers: int) -> None:
        """Gives this layer the circuit and the net that write so many numbers."""
        config, generator = self.settings[name], seeded(self.settings[name].seed, "qpa")
        _, n = chunks_and_wires(n_numbers, config.chunk)
        drawn = 2 * math.pi * torch.rand(config.n_layers + 1, n, generator=generator)
        angles = drawn.to(**self.place)
        if config.train_circuit:
            self.qpa_angles[name] = nn.Parameter(angles)
        else:
            self.qpa_fixed[name] = angles
        for held, shape in (
            (self.qpa_inner, (config.hidden, n + 2)),  # the last column is the constant
            (self.qpa_outer, (config.chunk, config.hidden + 1)),
        ):
            drawn = torch.randn(shape, generator=generator) / math.sqrt(shape[1])
            held[name] = nn.Parameter(drawn.to(**self.place))

    @classmethod
    def generate(cls, name: str, layers: Sequence[QPALinear]) -> list[Pair]:
        config = layers[0].settings[name]
        owner = next(layer for layer in layers if name in layer.qpa_inner)
        sizes = [config.r * dim for each in layers for dim in (each.in_features, each.out_features)]
        numbers = owner.numbers(name, sum(sizes)).split(sizes)
        pairs = []
        for layer, a, b in zip(layers, numbers[::2], numbers[1::2], strict=True):
            gain = layer.qpa_gain[name]
            strengths = gain * (config.scale / math.sqrt(layer.out_features))
            down = a.view(layer.in_features, config.r) / math.sqrt(layer.in_features)
            up = b.view(config.r, layer.out_features) * strengths.to(b.dtype).unsqueeze(1)
            pairs.append((down.to(gain.device), up.to(gain.device)))
        return pairs

    def numbers(self, name: str, n_numbers: int) -> Tensor:
        """The numbers of all A and B, of shape (n_numbers,) and order 1."""
        config = self.settings[name]
        angles: Any = (self.qpa_angles if config.train_circuit else self.qpa_fixed)[name]
        angles = angles.to(torch.promote_types(angles.dtype, torch.float32))
        n_chunks, n = chunks_and_wires(n_numbers, config.chunk)
        states = torch.arange(n_chunks, device=angles.device)
        bits = (states.unsqueeze(1) >> torch.arange(n - 1, -1, -1, device=angles.device)) & 1
        amplitudes = circuit.columns(angles.unsqueeze(0), 1, entangled=config.entangled)[0, :n_chunks]
        # Probabilities against those of the uniform distribution: of order 1, whatever the number of wires.
        features = torch.cat(
            [1.0 - 2 * bits, 2**n * amplitudes**2 - 1, torch.ones_like(amplitudes)], dim=1
        ).to(angles.dtype)  # (n_chunks, n + 2)
        inner, outer = self.qpa_inner[name].to(angles.dtype), self.qpa_outer[name].to(angles.dtype)
        hidden = torch.tanh(features @ inner.t())  # (n_chunks, hidden)
        chunks = torch.addmm(outer[:, -1], hidden, outer[:, :-1].t())  # (n_chunks, chunk)
        return chunks.flatten()[:n_numbers]


class QPAModel(GeneratedModel):
    """A model with `qpa` adapters."""

    prefix: str = "qpa_"
    tuner_layer_cls = QPALinear

    def _prepare_model(self, peft_config: Any, model: nn.Module) -> None:
        super()._prepare_model(peft_config, model)
        sizes = matched_by(model, peft_config).values()
        self._n_numbers = peft_config.r * sum(sum(pair) for pair in sizes)
        self._owned = False

    def _create_and_replace(self, peft_config: Any, adapter_name: str, *given: Any, **named: Any) -> None:
        super()._create_and_replace(peft_config, adapter_name, *given, **named)
        if not self._owned:
            self._owned = True
            layer = next(layer for layer in generated_layers(self.model) if adapter_name in layer.settings)
            assert isinstance(layer, QPALinear)
            layer.own(adapter_name, self._n_numbers)
            layer.set_adapter(layer.active_adapters)
