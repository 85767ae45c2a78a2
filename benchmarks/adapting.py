"""A training step with each adapter beside LoRA of equal weights: python -m benchmarks.adapting.

All nets take turns, step by step, in one process and one thread, so that a slow moment of the machine hits
all alike. Told is the median over the rounds of each step's processor time divided by LoRA's in the same
round. The floor is the step with no adapter's matrices to make: the frozen model alone, forward and backward
to the first adapted layer.
Printed, and written to adapting.json of the results' folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qnnkit import adapters
from qnnkit.device import machine
from qnnkit.models.blocks import seeded

NAMES = ("lora", "vera", "quantum_peft", "qpa")
TARGETS = ["q_proj", "v_proj"]
BOUND = 1.2
"""A step with circuits as the source of LoRA's weights takes at most so many times LoRA's."""


def llama(hidden: int, n_layers: int, vocabulary: int = 256) -> nn.Module:
    """A Llama with weights from a seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    with seeded(0):
        return LlamaForCausalLM(config)


class Stepper:
    """One net, its optimizer, and the times of its steps."""

    def __init__(self, model: nn.Module, tokens: torch.Tensor):
        self.model, self.tokens, self.times = model, tokens, []
        self.optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-3)

    def step(self) -> None:
        start = time.process_time()
        self.optimizer.zero_grad()
        self.model(self.tokens, labels=self.tokens).loss.backward()
        self.optimizer.step()
        self.times.append(time.process_time() - start)


class Shift(nn.Module):
    """A linear layer and a trained shift of its inputs: the least that gradients can be asked of."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.shift = inner, nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.shift


def floor(model: nn.Module) -> nn.Module:
    """The frozen model, in which only one number is trained at each adapted layer."""
    model.requires_grad_(False)
    for name in adapters.matched(model, TARGETS):
        parent, _, last = name.rpartition(".")
        inner = model.get_submodule(name)
        setattr(model.get_submodule(parent), last, Shift(inner))
    return model


def compare(
    hidden: int, n_layers: int, n_weights: int, rounds: int, batch: int = 8, length: int = 128
) -> list[dict[str, Any]]:
    """A row for each adapter, of about `n_weights` weights: milliseconds a step and times LoRA's."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (batch, length), generator=generator)
    nets: dict[str, Stepper] = {"floor": Stepper(floor(llama(hidden, n_layers)), tokens)}
    settings = {}
    for name in NAMES:
        base = llama(hidden, n_layers)
        chosen = adapters.config(name, n_weights=n_weights, model=base, targets=TARGETS)
        sized = ("r", "n_terms", "n_layers", "chunk", "hidden")
        settings[name] = {key: getattr(chosen, key) for key in sized if hasattr(chosen, key)}
        nets[name] = Stepper(adapters.adapt(base, name, n_weights=n_weights, targets=TARGETS), tokens)
    for turn in range(rounds + 2):
        order = list(nets.values())
        for net in order[turn % len(order) :] + order[: turn % len(order)]:
            net.step()
    found = []
    for name, net in nets.items():
        times = net.times[2:]
        ratios = [own / lora for own, lora in zip(times, nets["lora"].times[2:], strict=True)]
        found.append(
            {
                "adapter": name,
                "hidden": hidden,
                "n_layers": n_layers,
                "asked": n_weights,
                **adapters.count(net.model),
                "milliseconds": 1000 * statistics.median(times),
                "times LoRA": statistics.median(ratios),
                "settings": settings.get(name, {}),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for hidden, n_layers in ((128, 4), (384, 4)):
        for n_weights in (1000, 4000, 16000):
            rows += compare(hidden, n_layers, n_weights, given.rounds)
            for row in rows[-len(NAMES) - 1 :]:
                told = f"{row['adapter']:>14}  {row['weights']:>6} weights, {row['angles']:>5} angles"
                told += f"  {row['milliseconds']:7.1f} ms  {row['times LoRA']:.2f} x LoRA"
                print(f"hidden {hidden}, asked {n_weights:>5}: {told}  {row['settings']}", flush=True)
    held = [row for row in rows if row["adapter"] in ("quantum_peft", "qpa")]
    most = max(row["times LoRA"] for row in held)
    print(f"The slowest of quantum_peft and qpa takes {most:.2f} times LoRA's step (bound: {BOUND}).")
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"processor": machine.processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    text = json.dumps({"machine": about | {"system": platform.system()}, "rows": rows}, indent=1)
    (given.out / "adapting.json").write_text(text)


if __name__ == "__main__":
    main()
