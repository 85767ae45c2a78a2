"""One training step on tensors without memory: what it would hold at its peak, and what work it is.

Every operation of forward, backward and optimizer is run in torch's FakeTensorMode, which knows shapes and
dtypes alone; a ledger notes which tensors live at the same time. So a net of any size is traced in about a
second, at any batch size, on any machine.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from qnnkit import checkpoint, train
from qnnkit.breakdown.parts import nodes_between, quantum_parts
from qnnkit.checkpoint import own_generators
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

NEARLY = 1.02
"""Garbage is collected where what lives exceeds by so much what lived at the last collection."""


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
    """Bytes of weights that a checkpoint holds: of a model with an adapter not its frozen ones."""
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
    config, ledger = workload.training, Ledger(workload.training.gradient_checkpointing)
    stepper = train.Stepper(model, workload.task, config, workload.groups(model, config))
    for group in stepper.optimizer.param_groups if stepper.optimizer else ():
        group["foreach"] = foreach
    weights = list(model.parameters())
    for tensor in (*weights, *model.buffers()):
        ledger.add(tensor, "weights")
    passes = min(config.accumulation, 2)  # a third one holds no more than the second
    with contextlib.ExitStack() as work:
        for weight in weights:
            if weight.requires_grad:
                hook = weight.register_post_accumulate_grad_hook(
                    lambda weight: ledger.add(weight.grad, "gradients")
                )
                work.callback(hook.remove)
        work.enter_context(ledger.attributing(model))
        with ledger:
            _update(stepper, ledger, workload, FIRST, 1)
        ledger.begin()
        flops = FlopCounterMode(display=False, custom_mapping=ATTENTION)
        with ledger, flops:
            before_update = _update(stepper, ledger, workload, config.batch_size, passes)
    repeats = config.accumulation / passes
    again = repeats - 1  # the update itself comes once
    done = Work(
        flops=repeats * flops.get_total_flops(),
        bytes=ledger.work.bytes + again * before_update.bytes,
        operations=round(ledger.work.operations + again * before_update.operations),
    )
    n_trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    for weight in weights:
        weight.grad = None
    # The loop keeps the batches of an update until it is taken; those that were not traced lie there as well.
    ledger.at_peak["activations"] += (config.accumulation - passes) * _bytes_of(workload)
    left = checkpoint.weights.of(model)
    trained = sum(weight.nbytes for weight in weights if weight.requires_grad)
    copies = 1 if config.optimizer == "sgd" else 2  # gradients, and under Adam the roots of second moments
    return Traced(
        memory=dict(ledger.at_peak),
        work=done,
        n_weights=sum(weight.numel() for weight in weights),
        n_trained=n_trained,
        kept=sum(tensor.nbytes for tensor in left.values()),
        linear=_linear(model),
        at_update=ledger.live["weights"] + ledger.live["optimizer"] + copies * trained,
    )


def _linear(model: nn.Module) -> int:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    layers = (module for module in model.modules() if isinstance(module, nn.Linear) and module is not head)
    return sum(layer.weight.numel() for layer in layers if not layer.weight.requires_grad)


def _bytes_of(workload: Workload) -> int:
    """Of a batch."""
    leaves = tree_leaves(workload.batch(workload, workload.training.batch_size))
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def _update(stepper: train.Stepper, ledger: Ledger, workload: Workload, size: int, passes: int) -> Work:
    """One update; the work that came before its last part, the optimizer's."""
    kept = []
    for _ in range(passes):
        kept.append(workload.batch(workload, size))
        stepper.backward(stepper.forward(kept[-1]))
        if ledger.collects:
            gc.collect()
    before = copy.copy(ledger.work)
    with ledger.being("optimizer"):
        stepper.update()
    return before


class Ledger(TorchDispatchMode):
    """Which storages live, to what they belong, and what the operations that made them moved.

    Args:
        collects: Whether to collect garbage on the way to a peak. Where gradients are checkpointed, fake
            tensors wait for it in cycles; real ones are freed at once.
    """

    def __init__(self, collects: bool = False) -> None:
        super().__init__()
        self.collects = collects
        self.live: Counter[str] = Counter()
        self.known: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self.doing = "activations"
        self.begin()

    def begin(self) -> None:
        """Forgets the peak so far, not what lives."""
        gc.collect()
        self.at_peak, self.peak, self.work = Counter(self.live), sum(self.live.values()), Work(0, 0, 0)
        self.looked = self.peak

    def add(self, tensor: Tensor | None, part: str) -> None:
        """Notes a tensor's storage as a part's own, be it new or known as another's."""
        if tensor is None:
            return
        storage = tensor.untyped_storage()
        size, owner = storage.nbytes(), self.known.get(storage)
        if owner is not None:
            self.live[owner[0]] -= size
            self.live[part] += size
            owner[0] = part
            return
        owner = self.known[storage] = [part]
        self.live[part] += size
        weakref.finalize(storage, self._remove, owner, size)
        if sum(self.live.values()) > NEARLY * self.looked:
            if self.collects:
                gc.collect()
            self.looked = max(self.looked, sum(self.live.values()))
        if (total := sum(self.live.values())) > self.peak:
            self.peak, self.at_peak = total, Counter(self.live)

    def _remove(self, owner: list[str], size: int) -> None:
        self.live[owner[0]] -= size

    @contextlib.contextmanager
    def being(self, part: str) -> Iterator[None]:
        """What is made inside belongs to this part."""
        before, self.doing = self.doing, part
        try:
            yield
        finally:
            self.doing = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        returned = function._schema.returns
        if returned and all(
            each.alias_info is not None and not each.alias_info.is_write for each in returned
        ):
            return result  # a view: nothing is made, nothing is moved
        moved = 0
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                moved += leaf.numel() * leaf.element_size()
        self.work = Work(0, self.work.bytes + moved, self.work.operations + 1)
        if not function._schema.is_mutable:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage() not in self.known:
                    self.add(leaf, self.doing)
        return result

    @contextlib.contextmanager
    def attributing(self, model: nn.Module) -> Iterator[None]:
        """What circuits make, forward and backward, belongs to "quantum states"."""

        def enter(*_: Any) -> None:
            self.doing = "quantum states"

        def leave(*_: Any) -> None:
            self.doing = "activations"

        def left(part: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
            leave()
            for node in nodes_between(inputs, outputs):
                node.register_prehook(enter)
                node.register_hook(leave)

        with contextlib.ExitStack() as hooks:
            for part in quantum_parts(model):
                hooks.callback(part.register_forward_pre_hook(enter).remove)
                hooks.callback(part.register_forward_hook(left).remove)
            yield
