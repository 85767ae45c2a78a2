"""Adapters of equal parameter count: what rank, depth or width gives about as many weights as asked for."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from qnnkit import checks
from qnnkit.adapters import circuit
from qnnkit.adapters.later import NAMES, register
from qnnkit.adapters.skeleton import on_skeleton
from qnnkit.adapters.targets import matched_by

if TYPE_CHECKING:
    import pandas as pd
    from peft import PeftConfig

Sizes = Mapping[str, tuple[int, int]]
"""(in_features, out_features) of linear layers by name."""
NEAR = 0.05
"""Counts within this share of what was asked for are taken to be as near."""


def config(
    name: str,
    *,
    n_weights: int | None = None,
    model: nn.Module | None = None,
    targets: Iterable[str] | str | None = None,
    **options: Any,
) -> PeftConfig:
    """The PEFT config of an adapter, of about as many trained weights as asked for.

    What is given in `options` stays; of the rest the combination nearest to `n_weights` is taken, and of
    equally near ones that which is nearest to usual. A quantum adapter with `train_circuit=False` is sized as
    if its circuit trained: so it is the same adapter, and differs in nothing else. LoRA's alpha is twice its
    rank unless it is given.

    Args:
        name: "lora", "vera", "quantum_peft", "qpa", "quantum_token" or another method that PEFT knows.
        n_weights: Number of trained weights; None leaves all to `options` and the defaults.
        model: The base model, needed with `n_weights`; it is left as it was.
        targets: As PEFT's `target_modules`; None for what PEFT adapts in models of this type.
        options: Other settings of the config.

    Raises:
        ValueError: The name is unknown, is given targets or a count but adapts no linear layers, or has no
            rank to choose; an option is none of its settings, `targets` match nothing, or `n_weights` comes
            without `model`.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        >>> found = config("lora", n_weights=1000, model=model, targets=["0", "2"])
        >>> found.r
        4
    """
    known = _known()
    checks.choice("name", name, sorted(known))
    fields = {field.name for field in dataclasses.fields(known[name])}
    for option in options:
        checks.choice("options", option, sorted(fields))
    if "target_modules" in fields:
        wanted = list(targets) if targets is not None and not isinstance(targets, str) else targets
        options = {"target_modules": wanted, **options}
    elif targets is not None or n_weights is not None:
        rule = "be a method that adapts linear layers, to have targets or n_weights"
        raise ValueError(checks.message("name", rule, name, "Choose lora, vera, quantum_peft or qpa."))
    if n_weights is None:
        return _scaled(known[name](**options), options)
    if model is None:
        step = "Give the base model, whose layers decide the count."
        raise ValueError(checks.message("model", "be given with n_weights", None, step))
    checks.positive("n_weights", n_weights)
    sizes = matched_by(model, known[name](**options))
    if name in NAMES:
        chosen = _nearest(n_weights, _CANDIDATES[name](n_weights, sizes, _fixed(options, known[name])))
        return known[name](**(chosen | options))
    if "r" not in fields or "r" in options:
        rule = "have a rank r to choose"
        step = "Leave n_weights out, and give the settings that decide the size."
        raise ValueError(checks.message("name", rule, name, step))
    return _scaled(known[name](**options, r=_rank(known[name], options, model, n_weights)), options)


def _scaled(chosen: Any, options: Mapping[str, Any]) -> Any:
    """LoRA's alpha is twice its rank unless it is given: so updates are scaled alike at every rank."""
    from peft import LoraConfig

    if type(chosen) is LoraConfig and "lora_alpha" not in options:
        chosen.lora_alpha = 2 * chosen.r
    return chosen


def size(
    model: nn.Module, name: str, *, n_weights: int | None = None, targets: Any = None, **options: Any
) -> int:
    """How many weights an adapter would train; the arguments are those of `config`."""
    chosen = config(name, n_weights=n_weights, model=model, targets=targets, **options)
    return count(on_skeleton(model, chosen))["weights"]


def names() -> list[str]:
    """The adapters of layers that `config` knows."""
    return sorted(name for name, cls in _known().items() if "target_modules" in cls.__dataclass_fields__)


def _known() -> dict[str, Any]:
    """Name -> class of its config, of every method that PEFT knows."""
    register()
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as KNOWN

    return {str(getattr(kind, "value", kind)).lower(): cls for kind, cls in KNOWN.items()}


def count(model: nn.Module) -> dict[str, int]:
    """Trained `weights` of a model, and how many of them are `angles` of circuits."""
    from qnnkit.layers import quantum_parameters

    trained = [weight.numel() for weight in model.parameters() if weight.requires_grad]
    angles = [weight.numel() for weight in quantum_parameters(model) if weight.requires_grad]
    return {"weights": sum(trained), "angles": sum(angles)}


def table(
    model: nn.Module,
    names: Iterable[str] = ("lora", "vera", "quantum_peft", "qpa"),
    n_weights: Iterable[int] = (1000, 4000, 16000),
    targets: Iterable[str] | str | None = None,
) -> pd.DataFrame:
    """What `config` chooses: a row for each adapter and size, with the weights it has in the end.

    Args:
        model: The base model; it is left as it was.
        names: Of the adapters.
        n_weights: The sizes that are asked for.
        targets: As of `config`.
    """
    import pandas as pd

    rows = []
    for name, asked in itertools.product(names, n_weights):
        chosen = config(name, n_weights=asked, model=model, targets=targets)
        plain = type(chosen)()
        settings = {
            field.name: getattr(chosen, field.name)
            for field in dataclasses.fields(chosen)
            if field.name in ("r", "n_terms", "n_layers", "chunk", "hidden", "n_qubits")
            and hasattr(plain, field.name)
        }
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        rows.append({"adapter": name, "asked": asked, **count(on_skeleton(model, chosen)), "settings": told})
    return pd.DataFrame(rows)


# --- what may be chosen ----------------------------------------------------------------------------

Candidate = tuple[int, tuple[float, ...], dict[str, int]]
"""Weights, how far from usual, settings."""


def _nearest(n_weights: int, candidates: Iterable[Candidate]) -> dict[str, int]:
    def rank(candidate: Candidate) -> tuple[float, ...]:
        return (int(abs(candidate[0] / n_weights - 1) / NEAR), *candidate[1])

    return min(candidates, key=rank)[2]


def _fixed(options: Mapping[str, Any], cls: Any) -> dict[str, int]:
    """Settings that decide the size, as far as they are given."""
    return {name: options[name] for name in (*cls.counts, "n_qubits") if name in options}


def _either(fixed: Mapping[str, int], name: str, values: Iterable[int]) -> Iterable[int]:
    return [fixed[name]] if name in fixed else values


def _quantum_peft(n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterator[Candidate]:
    """Deep circuits and a low rank a term: a rank costs time in every layer call, an angle does not."""
    wires = sum(circuit.n_wires(dim) for pair in sizes.values() for dim in pair)
    least = min(dim for pair in sizes.values() for dim in pair)
    ranks = [rank for rank in range(1, 9) if rank <= least]
    for n_layers in _either(fixed, "n_layers", range(1, 11)):
        for r in _either(fixed, "r", ranks):
            term = (n_layers + 1) * wires + r * len(sizes)
            for n_terms in _either(fixed, "n_terms", [max(1, round(n_weights / term))]):
                usual = (abs(n_layers - 8), abs(r - 2))
                yield n_terms * term, usual, {"n_layers": n_layers, "r": r, "n_terms": n_terms}


def _qpa(n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterator[Candidate]:
    """Four numbers are generated for each weight, as nearly as ranks allow."""
    a_rank = sum(sum(pair) for pair in sizes.values())
    least = min(dim for pair in sizes.values() for dim in pair)
    usual_rank = min(least, max(1, round(4 * n_weights / a_rank)))
    for r, chunk, n_layers in itertools.product(
        _either(fixed, "r", [usual_rank]),
        _either(fixed, "chunk", [2**k for k in range(2, 11)]),
        _either(fixed, "n_layers", [4]),
    ):
        n = circuit.n_wires(math.ceil(r * a_rank / chunk))
        rest = (n_layers + 1) * n + r * len(sizes) + chunk
        for hidden in _either(fixed, "hidden", [max(1, round((n_weights - rest) / (n + 2 + chunk)))]):
            weights = rest + hidden * (n + 2 + chunk)
            usual = (abs(math.log2(hidden / 16)),)
            yield weights, usual, {"r": r, "chunk": chunk, "hidden": hidden, "n_layers": n_layers}


def _quantum_token(n_weights: int, sizes: Sizes, fixed: Mapping[str, int]) -> Iterator[Candidate]:
    sides = sum(sum(pair) for pair in sizes.values())
    for n_qubits in _either(fixed, "n_qubits", range(1, 11)):
        for n_layers in _either(fixed, "n_layers", range(1, 7)):
            weights = n_qubits * (sides + 3 * n_layers * len(sizes))
            yield weights, (abs(n_layers - 2),), {"n_qubits": n_qubits, "n_layers": n_layers}


_CANDIDATES = {"quantum_peft": _quantum_peft, "qpa": _qpa, "quantum_token": _quantum_token}


def _rank(cls: Any, options: Mapping[str, Any], model: nn.Module, n_weights: int) -> int:
    """The rank of a classical method: its count is linear in it, so that two tell all."""
    one, two = (count(on_skeleton(model, cls(**options, r=r)))["weights"] for r in (1, 2))
    return max(1, round(1 + (n_weights - one) / (two - one))) if two > one else 1
