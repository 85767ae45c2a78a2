"""Circuits as the source of LoRA's weights: parametrizations of PEFT's `lora_A` and `lora_B`.

Each weight of an adapter is a `Source`, registered by `torch.nn.utils.parametrize`; all sources of an adapter
are computed together, in one batch. A method of one's own is a subclass of `CircuitConfig` and of `Source`,
entered in `SOURCES`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from qnnkit import checks
from qnnkit.adapters import orthogonal
from qnnkit.data.batches import keyed_generator

Sizes = Mapping[str, tuple[int, int]]
"""(in_features, out_features) of the adapted layers by name, in the order of the model."""
Candidate = tuple[int, float, dict[str, int]]
"""Number of weights, distance from the usual settings, settings."""


@dataclass
class CircuitConfig:
    """Settings of every adapter whose weights come from circuits."""

    n_layers: int = 4
    """Depth of the circuit."""
    r: int = 4
    """Rank of the update, of one term where there are several."""
    scale: float = 8.0
    """Factor of the update."""
    entangled: bool = True
    """Whether the circuit has entangling gates."""
    train_circuit: bool = True
    """Whether its angles train, or stay as the seed drew them."""
    seed: int = 0
    """Fixes the initial angles."""
    target_modules: Any = None
    """This and what follows: as in PEFT's LoraConfig."""
    exclude_modules: Any = None
    layers_to_transform: Any = None
    layers_pattern: Any = None
    modules_to_save: Any = None
    task_type: str | None = None

    counts: ClassVar[tuple[str, ...]] = ("n_layers", "r")
    """Settings that decide the number of weights; whole numbers above 0."""
    source: ClassVar[type[Source]]

    def __post_init__(self) -> None:
        for name in self.counts:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(checks.message(name, "be a whole number above 0", value, "Use 1 or more."))

    @property
    def rank(self) -> int:
        """LoRA's rank."""
        return self.r

    @classmethod
    def candidates(cls, n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterable[Candidate]:
        """Settings with about `n_weights` trained weights, of which those in `fixed` are given."""
        raise NotImplementedError(f"{cls.__name__} has no `candidates`: leave n_weights out.")

    def lora(self) -> Any:
        """The LoraConfig whose weights the circuits give; the scale is in the weights."""
        from peft import LoraConfig

        ours: dict[str, Any] = vars(self) | {"r": self.rank, "lora_alpha": self.rank}
        known = {field.name for field in fields(LoraConfig)}
        return LoraConfig(**{name: value for name, value in ours.items() if name in known})


class Circuits:
    """All sources of one adapter.

    Args:
        config: Settings of the adapter.
        sizes: The adapted layers.
        like: LoRA's weight; the sources have its dtype and begin on its device.
    """

    def __init__(self, config: CircuitConfig, sizes: Sizes, like: Tensor):
        self.config, self.sizes = config, dict(sizes)
        self.made: dict[bool, list[Tensor]] | None = None
        """Inside `once`: with gradients or not -> the weights, in the order of `sources`."""
        self.sources: list[Source] = []
        for layer, side in itertools.product(sizes, ("lora_A", "lora_B")):
            self.sources.append(config.source(self, layer, side, like))

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """Inside, the weights are computed at most once; angles must not change there."""
        if self.made is not None:  # within another
            yield
            return
        self.made = {}
        try:
            yield
        finally:
            self.made = None

    def weight(self, source: Source) -> Tensor:
        """LoRA's weight of one source."""
        mode = torch.is_grad_enabled()
        if self.made is None:
            return self._compute([source])[0]
        if mode not in self.made:
            self.made[mode] = self._compute(self.sources)
        return self.made[mode][source.index]

    def _compute(self, sources: Sequence[Source]) -> list[Tensor]:
        # A float32 island: bfloat16 knows an angle near pi only to 0.016 radians. Gradient checkpointing must
        # see nothing of it, as it may be computed in a recomputed part on the way forward and not again.
        kind = sources[0].place.device.type
        kind = kind if torch.amp.is_autocast_available(kind) else "cpu"  # not of meta
        with torch.autocast(kind, enabled=False), saved_tensors_hooks(_same, _same):
            found = self.config.source.compute(sources)
            return [weight.to(each.place.device) for each, weight in zip(sources, found, strict=True)]


class Angles(nn.Module):
    """Angles of circuits in radians: a parameter, or a buffer where they do not train."""

    of_circuit = True
    """`layers.quantum_parameters` knows circuits by it."""
    weights: Tensor

    def __init__(self, shape: Sequence[int], trained: bool, generator: torch.Generator, like: Tensor):
        super().__init__()
        drawn = (2 * math.pi * torch.rand(*shape, generator=generator)).to(like)
        if trained:
            self.weights = nn.Parameter(drawn)
        else:
            self.register_buffer("weights", drawn)

    def forward(self) -> Tensor:
        """In float32 at least."""
        return self.weights.to(torch.promote_types(self.weights.dtype, torch.float32))


class Source(nn.Module):
    """A parametrization without an original tensor: one weight of LoRA, from circuits.

    Args:
        circuits: The adapter that it belongs to.
        layer: Name of the adapted layer in the base model.
        side: "lora_A", of shape (rank, in_features), or "lora_B", of shape (out_features, rank).
        like: Gives dtype and device.
    """

    place: Tensor

    def __init__(self, circuits: Circuits, layer: str, side: str, like: Tensor):
        super().__init__()
        self.circuits, self.layer, self.side = circuits, layer, side
        self.index = len(circuits.sources)
        self.dim = circuits.sizes[layer][side == "lora_B"]
        self.register_buffer("place", torch.empty(0, dtype=like.dtype, device=like.device), persistent=False)

    @classmethod
    def compute(cls, sources: Sequence[Any]) -> Iterable[Tensor]:
        """The weights of some sources of one adapter, in their order."""
        raise NotImplementedError

    def forward(self) -> Tensor:
        return self.circuits.weight(self)

    def right_inverse(self, weight: Tensor) -> tuple[()]:
        """No original tensor stays: what LoRA began with is dropped."""
        return ()


# --- Quantum-PEFT ----------------------------------------------------------------------------------


class QuantumPeft(Source):
    """V^T, or U diag(scale * lambda)."""

    def __init__(self, circuits: Circuits, layer: str, side: str, like: Tensor):
        super().__init__(circuits, layer, side, like)
        config: Any = circuits.config
        least = min(circuits.sizes[layer])
        if config.r > least:
            rule = f"be at most {least}, the smaller side of {layer}"
            raise ValueError(checks.message("r", rule, config.r, "Raise n_terms instead."))
        shape = config.n_terms, config.n_layers + 1, orthogonal.n_wires(self.dim)
        generator = keyed_generator(config.seed, layer, "in" if side == "lora_A" else "out")
        self.angles = Angles(shape, config.train_circuit, generator, like)
        if side == "lora_B":
            self.strengths = nn.Parameter(torch.zeros(config.rank).to(like))

    @classmethod
    def compute(cls, sources: Sequence[QuantumPeft]) -> Iterable[Tensor]:
        """Circuits of as many wires are one batch, whichever layers and sides they belong to."""
        config: Any = sources[0].circuits.config
        groups: dict[Any, list[QuantumPeft]] = {}
        for source in sources:
            weights = source.angles.weights
            groups.setdefault((weights.shape[-1], weights.device), []).append(source)
        found: dict[int, Tensor] = {}
        for group in groups.values():
            angles = torch.cat(
                [source.angles() for source in group]
            )  # (sources * n_terms, n_layers + 1, wires)
            columns = orthogonal.columns(angles, config.r, entangled=config.entangled)
            columns = columns.unflatten(0, (len(group), -1)).transpose(1, 2).flatten(2)
            found |= {source.index: one for source, one in zip(group, columns, strict=True)}  # (2**n, rank)
        for source in sources:
            matrix = found[source.index][: source.dim]
            if source.side == "lora_A":
                yield matrix.t()
            else:
                yield matrix * (config.scale * source.strengths.to(matrix.dtype))


@dataclass
class QuantumPeftConfig(CircuitConfig):
    """Settings of `quantum_peft`: W + scale * sum over terms of U diag(lambda) V^T.

    U and V are the first r columns of circuits over ceil(log2(dim)) wires, cropped to dim rows. A layer has
    n_terms * ((n_layers + 1) * (wires of U + wires of V) + r) weights; lambda is 0 at first.

    Reference: Koike-Akino et al. (2025), arXiv:2503.05431.
    """

    n_terms: int = 1
    """Pairs of circuits a layer; LoRA's rank is r * n_terms."""

    source, counts = QuantumPeft, ("n_layers", "r", "n_terms")

    @property
    def rank(self) -> int:
        return self.r * self.n_terms

    @classmethod
    def candidates(cls, n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterator[Candidate]:
        """Deep circuits and a low rank a term: a rank costs time in every layer call, an angle does not."""
        wires = sum(orthogonal.n_wires(dim) for pair in sizes.values() for dim in pair)
        least = min(dim for pair in sizes.values() for dim in pair)
        for n_layers in _either(fixed, "n_layers", range(1, 11)):
            for r in _either(fixed, "r", range(1, min(8, least) + 1)):
                term = (n_layers + 1) * wires + r * len(sizes)
                for n_terms in _either(fixed, "n_terms", [max(1, round(n_weights / term))]):
                    usual = 10 * abs(n_layers - 8) + abs(r - 2)
                    yield n_terms * term, usual, {"n_layers": n_layers, "r": r, "n_terms": n_terms}


# --- QPA -------------------------------------------------------------------------------------------


class QPA(Source):
    """A / sqrt(in_features), or B diag(scale * gain) / sqrt(out_features).

    The first source of an adapter holds the circuit and the net of all.
    """

    def __init__(self, circuits: Circuits, layer: str, side: str, like: Tensor):
        super().__init__(circuits, layer, side, like)
        config: Any = circuits.config
        if side == "lora_B":
            self.gain = nn.Parameter(torch.zeros(config.r).to(like))
        if self.index:
            return
        self.numbers = [config.r * dim for pair in circuits.sizes.values() for dim in pair]
        self.n_chunks = math.ceil(sum(self.numbers) / config.chunk)
        n, generator = orthogonal.n_wires(self.n_chunks), keyed_generator(config.seed, "qpa")
        self.angles = Angles((1, config.n_layers + 1, n), config.train_circuit, generator, like)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(shape, generator=generator) / math.sqrt(shape[1])).to(like))

        self.inner = drawn(config.hidden, n + 2)  # the last column is the constant
        self.outer = drawn(config.chunk, config.hidden + 1)

    @classmethod
    def compute(cls, sources: Sequence[QPA]) -> Iterable[Tensor]:
        config: Any = sources[0].circuits.config
        first: Any = sources[0].circuits.sources[0]
        numbers = first.generate().split(first.numbers)
        for source in sources:
            own = numbers[source.index]
            if source.side == "lora_A":
                yield (own.view(source.dim, config.r) / math.sqrt(source.dim)).t()
            else:
                strengths = source.gain.to(own) * (config.scale / math.sqrt(source.dim))
                yield (own.view(config.r, source.dim) * strengths.unsqueeze(1)).t()

    def generate(self) -> Tensor:
        """The numbers of all A and B, of shape (n_numbers,) and order 1."""
        angles = self.angles()
        n, states = angles.shape[-1], torch.arange(self.n_chunks, device=angles.device)
        bits = (states.unsqueeze(1) >> torch.arange(n - 1, -1, -1, device=angles.device)) & 1
        entangled = self.circuits.config.entangled
        amplitudes = orthogonal.columns(angles, 1, entangled=entangled)[0, : self.n_chunks]
        # Probabilities against those of the uniform distribution: of order 1, whatever the number of wires.
        features = torch.cat(
            [1.0 - 2 * bits, 2**n * amplitudes**2 - 1, torch.ones_like(amplitudes)], dim=1
        ).to(angles.dtype)  # (n_chunks, n + 2)
        inner, outer = self.inner.to(angles.dtype), self.outer.to(angles.dtype)
        hidden = torch.tanh(features @ inner.t())  # (n_chunks, hidden)
        chunks = torch.addmm(outer[:, -1], hidden, outer[:, :-1].t())  # (n_chunks, chunk)
        return chunks.flatten()[: sum(self.numbers)]


@dataclass
class QPAConfig(CircuitConfig):
    """Settings of `qpa`: W + scale * B diag(gain) A, where A and B of all layers are generated together.

    All numbers of A and B stand in a row, in chunks. Chunk k belongs to basis state k of a circuit over
    ceil(log2(number of chunks)) wires; a net of one hidden layer maps the bits of k and the state's
    probability to the chunk. There are (n_layers + 1) * n_wires angles, hidden * (n_wires + 2) +
    chunk * (hidden + 1) weights of the net, and r gains a layer, which are 0 at first.

    Reference: Liu et al. (2025), arXiv:2410.09846.
    """

    chunk: int = 64
    """Numbers that one basis state stands for."""
    hidden: int = 16
    """Width of the net from states to chunks."""

    source, counts = QPA, ("n_layers", "r", "chunk", "hidden")

    @classmethod
    def candidates(cls, n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterator[Candidate]:
        """Four numbers are generated for each weight, as nearly as ranks allow."""
        a_rank = sum(map(sum, sizes.values()))
        least = min(dim for pair in sizes.values() for dim in pair)
        usual_rank = min(least, max(1, round(4 * n_weights / a_rank)))
        for r, chunk, n_layers in itertools.product(
            _either(fixed, "r", [usual_rank]),
            _either(fixed, "chunk", [2**k for k in range(2, 11)]),
            _either(fixed, "n_layers", [4]),
        ):
            n = orthogonal.n_wires(math.ceil(r * a_rank / chunk))
            rest = (n_layers + 1) * n + r * len(sizes) + chunk
            for hidden in _either(fixed, "hidden", [max(1, round((n_weights - rest) / (n + 2 + chunk)))]):
                chosen = {"r": r, "chunk": chunk, "hidden": hidden, "n_layers": n_layers}
                yield rest + hidden * (n + 2 + chunk), abs(math.log2(hidden / 16)), chosen


SOURCES: dict[str, type[CircuitConfig]] = {"quantum_peft": QuantumPeftConfig, "qpa": QPAConfig}
"""Name of an adapter -> its settings."""


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _either(fixed: Mapping[str, int], name: str, values: Iterable[int]) -> Iterable[int]:
    return [fixed[name]] if name in fixed else values
