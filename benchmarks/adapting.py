"""Training steps with each adapter and with LoRA of equal size: python -m benchmarks.adapting.

All nets take turns in one process and one thread (`measure.race`). The floor is a step without an adapter's
matrices: only the frozen model, forward and backward to the first adapted layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks import record
from qnnkit import adapters, measure
from qnnkit.models.blocks import seeded

NAMES = ("lora", "vera", "quantum_peft")
TARGETS = ["q_proj", "v_proj"]
HIDDEN, WEIGHTS = (128, 384), (1000, 4000, 16000)
"""Sizes of the net and of its adapters."""
BATCH, LENGTH = 8, 128
"""Texts per step, and tokens per text."""
SECONDS = 20.0
"""Approximate duration of a race."""


def llama(hidden: int, n_layers: int = 4, vocabulary: int = 256) -> nn.Module:
    """A Llama with weights from a seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": 4 * hidden}
    sizes |= {"num_hidden_layers": n_layers, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(**sizes, max_position_embeddings=512)
    with seeded(0):
        return LlamaForCausalLM(config)


def stepper(model: nn.Module, tokens: torch.Tensor) -> Callable[[], None]:
    """A training step of one net."""
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def floor(model: nn.Module) -> nn.Module:
    """The frozen model with a trained shift of each adapted layer's inputs: the smallest trained part."""
    model.requires_grad_(False)
    for name, module in model.named_modules():
        if name.endswith(tuple(TARGETS)):
            module.shift = nn.Parameter(torch.zeros(1))
            module.register_forward_pre_hook(lambda module, inputs: (inputs[0] + module.shift, *inputs[1:]))
    return model


def compare(hidden: int, n_weights: int) -> list[dict[str, Any]]:
    """A row per adapter of about `n_weights` weights: milliseconds per step, and the ratio to LoRA."""
    tokens = torch.randint(0, 256, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    nets = {"floor": floor(llama(hidden))}
    for name in NAMES:
        nets[name] = adapters.adapt(llama(hidden), name, n_weights=n_weights, targets=TARGETS)
    steps = {name: measure.Step(stepper(net, tokens), threads=1) for name, net in nets.items()}
    laps = measure.race(steps, seconds=SECONDS)
    took = {name: 1e3 * (lap.seconds or math.nan) for name, lap in laps.items()}
    return [
        {"adapter": name, "hidden": hidden, "asked": n_weights, **adapters.count(net)}
        | {"ms": took[name], "times_lora": took[name] / took["lora"]}
        for name, net in nets.items()
    ]


def rows() -> Iterator[dict[str, Any]]:
    for hidden, n_weights in itertools.product(HIDDEN, WEIGHTS):
        yield from compare(hidden, n_weights)


def table(frame: pd.DataFrame) -> str:
    """The time of a step relative to LoRA's, by size of net and adapter, as a table in Markdown."""
    wide = frame.pivot_table(index=["hidden", "asked"], columns="adapter", values="times_lora")[[*NAMES[1:]]]
    rows = ([f"{size:,}" for size in sizes] + [f"{x:.2f}" for x in row] for sizes, row in wide.iterrows())
    return record.markdown(["hidden size", "adapter's weights", *wide.columns], rows)


if __name__ == "__main__":
    record.run(__doc__, adapting=rows)
