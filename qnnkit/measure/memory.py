"""Memory of a training step by part, and its work, traced without running the step.

Every operation of forward, backward and optimizer runs in torch's FakeTensorMode, which knows only shapes and
dtypes; a ledger records which tensors are alive at the same time. A net of any size is therefore traced in
seconds, at any batch size, on any machine.

The ledger replaces torch.distributed._tools.mem_tracker.MemTracker, whose peak it reproduces. MemTracker
raises an error if weights are frozen, and took 24 s for a step of a Llama of 3 billion weights; the ledger
took 3 s (two x86 cores, 2026-11-26).
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from qnnkit import checks, layers, train
from qnnkit.checkpoint import own_generators
from qnnkit.checkpoint import weights as kept_weights
from qnnkit.measure.parts import hooked
from qnnkit.measure.workload import Workload

NEARLY = 1.02
"""Garbage is collected when the living tensors exceed those of the last collection by this factor."""
FIRST = 2
"""Samples of the first step, which creates the optimizer's moments; normalisation needs more than one."""
COUNTS: dict[Any, Any] = {  # torch's counters, and two of CPU operations that torch does not count
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *args, **_: sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *args, **_: sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
    ),
}


PARTS = ("weights", "gradients", "optimizer", "activations", "quantum states")


@dataclass
class Work:
    """Work of one update, the same on every machine."""

    flops: float = 0
    """Floating point operations of its matrix products and convolutions."""
    bytes: float = 0
    """Bytes that its operations read and write, summed over the operations."""
    operations: int = 0
    """Number of operations that it launches."""


@dataclass(frozen=True)
class Traced:
    """Memory and work of one training step, as traced.

    Attributes:
        memory: Bytes at the peak, by part.
        work: Work of one update.
        n_weights: Number of weights.
        n_trained: Number of trained weights.
        kept: Bytes of weights in a checkpoint, without the frozen base under a PEFT adapter.
        linear: Number of frozen weights that 4 bits can hold: those of linear layers, except the output
            layer.
        at_update: Bytes held during the optimizer's update on a GPU, which takes all weights at once, with
            one copy of each trained weight for SGD and two for Adam.
    """

    memory: dict[str, int]
    work: Work
    n_weights: int
    n_trained: int
    kept: int
    linear: int
    at_update: int

    @property
    def held(self) -> int:
        """Bytes of tensors at the peak."""
        return sum(self.memory.get(part, 0) for part in PARTS)

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, without the frozen base under a PEFT adapter, and moments."""
        return self.kept + self.memory.get("optimizer", 0)

    @property
    def copied(self) -> int:
        """Additional bytes for the copy of a checkpoint that is written while training continues. It first
        fills the memory of the gradients, which they need again at the end of the next backward pass."""
        return max(0, self.checkpoint - self.memory.get("gradients", 0))


def trace(workload: Workload, *, foreach: bool = False) -> Traced:
    """Memory at the peak of a training step, by part, and the step's work.

    Args:
        workload: Training to trace.
        foreach: Whether the optimizer takes all weights at once, as on GPUs. This needs fewer operations, but
            also one or two copies of the trained weights.

    Raises:
        ValueError: The net or its task reads values of tensors, while only their shapes are known.
    """
    frozen = gc.get_freeze_count()  # objects that the caller has frozen stay frozen
    gc.freeze()  # the collector visits only objects made from here on
    try:
        with own_generators():
            with torch.device("meta") if workload.example is None else contextlib.nullcontext():
                model = workload.build(workload.training, True)
            if workload.example is not None:
                with layers.evaluating(model):
                    layers.called(model, workload.example)
            with FakeTensorMode(allow_non_fake_inputs=True):
                if workload.example is None:  # a net on the meta device takes no batch of the CPU
                    model.to_empty(device="cpu")
                    getattr(model, "tie_weights", lambda: None)()  # to_empty has untied them
                return _traced(workload, model, foreach)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        step = "Avoid operations that select by value, such as x[mask] or nonzero."
        rule = "compute shapes from shapes alone to be planned"
        raise ValueError(checks.message("task", rule, str(error), step)) from None
    finally:
        if not frozen:
            gc.unfreeze()


def _traced(workload: Workload, model: nn.Module, foreach: bool) -> Traced:
    """Traces one step to create the optimizer's moments, and then the step that counts."""
    config, weights = workload.training, list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    copies = (1 if config.optimizer == "sgd" else 2) * sum(weight.nbytes for weight in trained)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    dense = (part for part in model.modules() if isinstance(part, nn.Linear) and part is not head)
    linear = (part.weight for part in dense if not is_parametrized(part))  # else its circuits would run
    gc.freeze()
    ledger, stepper = Ledger(config.gradient_checkpointing), workload.stepper(model=model)
    for group in stepper.optimizer.param_groups if stepper.optimizer else ():
        group["foreach"] = True  # fewer operations to create the moments
    for tensor in (*weights, *model.buffers()):
        ledger.add(tensor, "weights")
    with contextlib.ExitStack() as hooks:
        for weight in trained:
            add = weight.register_post_accumulate_grad_hook(lambda w: ledger.add(w.grad, "gradients"))
            hooks.callback(add.remove)
        hooks.enter_context(hooked(model, ledger.change))
        with ledger:
            if workload.example is not None or layers.exchanged_parameters(model):
                _update(stepper, ledger, workload, FIRST)  # circuits are read in the first pass
            else:  # every trained weight of a language model has a gradient, so no pass is needed
                for weight in trained:
                    weight.grad = torch.zeros_like(weight)
                ledger.doing = "optimizer"
                stepper.update()
        for group in stepper.optimizer.param_groups if stepper.optimizer else ():
            group["foreach"] = foreach
        ledger.begin()
        with ledger:
            _update(stepper, ledger, workload, config.batch_size)
    return Traced(
        memory=dict(ledger.peak),
        work=ledger.work,
        n_weights=sum(weight.numel() for weight in weights),
        n_trained=sum(weight.numel() for weight in trained),
        kept=sum(tensor.nbytes for tensor in kept_weights.of(model).values()),
        linear=sum(weight.numel() for weight in linear if not weight.requires_grad),
        at_update=ledger.live["weights"] + ledger.live["optimizer"] + copies,
    )


def _update(stepper: train.Stepper, ledger: Ledger, workload: Workload, size: int) -> None:
    """Runs one piece of an update, and multiplies its work by the number of pieces.

    If there are several, gradients exist from the start, as they do for the last piece.
    """
    ledger.doing = "activations"
    passes = stepper.passes(workload.batch(size))
    for weight in stepper.model.parameters() if len(passes) > 1 else ():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
            ledger.add(weight.grad, "gradients")
    step = passes[-1]()
    stepper.backward(step, 1 / len(passes))
    del step
    if ledger.collects:
        gc.collect()
    for name, value in vars(ledger.work).items():
        setattr(ledger.work, name, len(passes) * value)
    ledger.doing = "optimizer"
    stepper.update()


class Ledger(TorchDispatchMode):
    """Records which storages are alive, which part each belongs to, and the work of all operations.

    Args:
        collects: Whether to collect garbage on the way to a peak. With gradient checkpointing, fake tensors
            stay in reference cycles until then; real ones are freed at once.
    """

    def __init__(self, collects: bool = False) -> None:
        super().__init__()
        self.collects = collects
        self.live: Counter[str] = Counter()
        self.owners: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self.doing = "activations"
        """Part that new tensors belong to."""
        self.begin()

    def begin(self) -> None:
        """Resets the peak and the work. Living tensors stay recorded."""
        gc.collect()
        self.peak, self.work, self.looked = Counter(self.live), Work(), self.live.total()

    def add(self, tensor: Any, part: str) -> None:
        """Assigns a tensor's storage to a part, whether it is new or belonged to another part."""
        storage = tensor.untyped_storage()
        size, owner = storage.nbytes(), self.owners.get(storage)
        if owner is None:
            owner = self.owners[storage] = [part]
            weakref.finalize(storage, self._remove, owner, size)
        else:
            self.live[owner[0]] -= size
        owner[0] = part
        self.live[part] += size
        if self.collects and self.live.total() > NEARLY * self.looked:
            gc.collect()
            self.looked = max(self.looked, self.live.total())
        if self.live.total() > self.peak.total():
            self.peak = Counter(self.live)

    def _remove(self, owner: list[str], size: int) -> None:
        self.live[owner[0]] -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = function(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if function is not torch.ops.aten._local_scalar_dense.default:
                raise
            return 1.0 if args[0].dtype.is_floating_point else 1  # a task may count, and any number will do
        returned = function._schema.returns
        if returned and all(value.alias_info and not value.alias_info.is_write for value in returned):
            return result  # a view allocates nothing and moves nothing
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        self.work.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.work.operations += 1
        if count := COUNTS.get(function._overloadpacket):
            self.work.flops += count(*args, **(kwargs or {}), out_val=result)
        if not function._schema.is_mutable:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage() not in self.owners:
                    self.add(leaf, self.doing)
        return result

    def change(self, part: str) -> None:
        """Assigns what circuits allocate, forward and backward, to "quantum states"; see `parts.hooked`."""
        self.doing = "quantum states" if part.startswith("quantum") else "activations"
