"""One training step on tensors without memory: what it would hold at its peak, and what work it is.

Every operation of forward, backward and optimizer is run in torch's FakeTensorMode, which knows shapes and
dtypes alone; a ledger notes which tensors live at the same time. So a net of any size is traced in seconds,
at any batch size, on any machine: of many equal layers of a language model a few are run (see `depth`).
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from qnnkit import layers, train
from qnnkit.checkpoint import own_generators
from qnnkit.checkpoint import weights as kept_weights
from qnnkit.plan import depth
from qnnkit.plan.depth import Seen
from qnnkit.plan.ledger import Ledger
from qnnkit.plan.prediction import Work
from qnnkit.plan.workload import Workload


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_back(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_back,
}
"""Operations that torch's counter does not know, and how it would count them."""
FIRST = 2
"""Samples of the first step, which makes the optimizer's moments; normalisation wants more than one."""
PASSES = 2
"""Of an update that are traced: a third one holds no more than the second."""


@dataclass(frozen=True)
class Traced:
    """What one training step would hold and do."""

    memory: dict[str, int]
    """Part -> bytes at the peak of the step."""
    work: Work
    """Of one update."""
    n_weights: int
    n_trained: int
    kept: int
    """Bytes of weights that a checkpoint holds: frozen ones that are built anew are not among them."""
    linear: int
    """Frozen numbers in linear layers, the one that gives the logits left out: what 4 bits would hold."""
    at_update: int
    """Bytes held in the update of a GPU, which takes all weights at once, with one copy of each trained
    weight under SGD and two under Adam."""


def trace(workload: Workload, *, foreach: bool = False) -> Traced:
    """Memory at the peak of a training step, by part, and the step's work.

    Args:
        workload: What is trained.
        foreach: Whether the optimizer takes all weights at once, as it does on GPUs: in fewer operations, for
            one or two copies of the trained weights at a time.
    """
    with own_generators(), _quick_collection():
        with contextlib.nullcontext() if workload.prepare else torch.device("meta"):
            model = workload.build(workload, True)
        if workload.prepare:
            workload.prepare(model)
        with FakeTensorMode(allow_non_fake_inputs=True):
            _leave_meta(model)
            return _traced(workload, model, foreach)


@contextlib.contextmanager
def _quick_collection() -> Iterator[None]:
    """The garbage collector looks only at what is made inside."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _leave_meta(model: nn.Module) -> None:
    """Puts fake tensors in place of those on the meta device: a batch from the CPU meets no other device."""
    known: dict[Tensor, Tensor] = {}  # what is tied stays so

    def moved(tensor: Tensor) -> Tensor:
        if tensor not in known:
            fake = torch.empty_like(tensor, device="cpu")
            known[tensor] = (
                nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
            )
        return known[tensor]

    for module in model.modules():
        places: Any = (module._parameters, module._buffers)
        for tensors in places:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    tensors[name] = moved(tensor)


def _traced(workload: Workload, model: nn.Module, foreach: bool) -> Traced:
    config, weights = workload.training, list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    # Counted before layers are taken out.
    n_weights, n_trained = (sum(weight.numel() for weight in each) for each in (weights, trained))
    kept = sum(tensor.nbytes for tensor in kept_weights.of(model, rebuilt=True).values())
    copies = 1 if config.optimizer == "sgd" else 2  # gradients, and under Adam the roots of second moments
    copied, linear = copies * sum(weight.nbytes for weight in trained), _linear(model)
    gc.freeze()
    seen = depth.followed(model, lambda stack: _step(workload, model, foreach, stack))
    memory = max(seen.peaks.values(), key=lambda parts: sum(parts.values()))
    return Traced(
        memory=dict(memory),
        work=seen.work,
        n_weights=n_weights,
        n_trained=n_trained,
        kept=kept,
        linear=linear,
        at_update=seen.held.get("weights", 0) + seen.held.get("optimizer", 0) + copied,
    )


def _step(workload: Workload, model: nn.Module, foreach: bool, stack: nn.ModuleList | None) -> Seen:
    """What one training step holds and does; by layer of a stack, if there is one."""
    config = workload.training
    ledger = Ledger(config.gradient_checkpointing, closely=stack is not None)
    stepper = train.Stepper(model, workload.task, config, workload.groups(model, config))
    for group in stepper.optimizer.param_groups if stepper.optimizer else ():
        group["foreach"] = foreach
    weights = list(model.parameters())
    for tensor in (*weights, *model.buffers()):
        ledger.add(tensor, "weights")
    with contextlib.ExitStack() as work:
        for weight in weights:
            if weight.requires_grad:
                hook = weight.register_post_accumulate_grad_hook(
                    lambda weight: ledger.add(weight.grad, "gradients")
                )
                work.callback(hook.remove)
        work.enter_context(ledger.attributing(model))
        with ledger:
            if stack is None or layers.exchanged_parameters(model):  # circuits are read in the first pass
                _update(stepper, ledger, workload, FIRST)
            else:  # all that such a model trains has a gradient
                _update_alone(stepper, ledger, weights)
        ledger.begin()
        if stack is not None:
            work.enter_context(depth.placing(ledger, stack))
        flops = FlopCounterMode(display=False, custom_mapping=ATTENTION)
        with ledger, flops:
            before_update, repeats = _update(stepper, ledger, workload, config.batch_size)
    again = repeats - 1  # the update itself comes once
    done = Work(
        flops=repeats * flops.get_total_flops(),
        bytes=ledger.work.bytes + again * before_update.bytes,
        operations=round(ledger.work.operations + again * before_update.operations),
    )
    for weight in weights:
        weight.grad = None
    return Seen(dict(ledger.peaks), done, dict(ledger.live))


def _linear(model: nn.Module) -> int:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    linear = (module for module in model.modules() if isinstance(module, nn.Linear) and module is not head)
    return sum(layer.weight.numel() for layer in linear if not layer.weight.requires_grad)


def _update(stepper: train.Stepper, ledger: Ledger, workload: Workload, size: int) -> tuple[Work, float]:
    """One update of at most `PASSES` of its pieces, the largest, and how many times as many there are.

    The work is what came before its last part, the optimizer's.
    """
    passes = stepper.passes(workload.batch(workload, size))
    for number, compute in enumerate(passes[-PASSES:]):
        ledger.enter("forward", number)
        loss = compute()
        ledger.enter("backward", number)
        stepper.backward(loss)
        del loss
        if ledger.collects:
            gc.collect()
    before = copy.copy(ledger.work)
    ledger.enter("update")
    with ledger.being("optimizer"):
        stepper.update()
    return before, len(passes) / min(len(passes), PASSES)


def _update_alone(stepper: train.Stepper, ledger: Ledger, weights: Sequence[nn.Parameter]) -> None:
    """What the optimizer makes of any gradients, without the passes that gradients come from."""
    for weight in weights:
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    with ledger.being("optimizer"):
        stepper.update()
