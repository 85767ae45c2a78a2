"""Memory of a training step before it is run, by part, and the step's work.

Every operation of forward, backward and optimizer runs in torch's FakeTensorMode, which knows shapes and
dtypes alone; a ledger notes which tensors live at the same time. So a net of any size is traced in seconds,
at any batch size, on any machine.

Of a language model with many equal layers a few are traced, and the rest follows. What lives in a step grows
by the same amount with each layer, so memory at every place that is named from the first or from the last
layers is linear in the number of layers, and between these places there is never more than at both ends. The
peak is the largest of these places at the full number; work is linear as a whole.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from qnnkit import checks, layers, train
from qnnkit.checkpoint import own_generators
from qnnkit.checkpoint import weights as kept_weights
from qnnkit.measure.parts import Around, hooked
from qnnkit.measure.workload import Workload

NEARLY = 1.02
"""Garbage is collected where what lives exceeds by so much what lived at the last collection."""
FIRST = 2
"""Samples of the first step, which makes the optimizer's moments; normalisation wants more than one."""
PASSES = 2
"""Pieces of an update that are traced: a third one holds no more than the second."""
FEW = 3
"""Equal layers that are traced, and then one more: a first, a last, and one between them."""
ENDS = 2
"""Layers that have a place of their own, at each end."""
ATTENTION = {  # operations that torch's counter does not know
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: (
        sdpa_flop_count(query, key, value)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, query, key, value, *_, **__: sdpa_backward_flop_count(gradient, query, key, value)
    ),
}


@dataclass(frozen=True)
class Work:
    """What one update asks of any machine."""

    flops: float
    """Floating point operations of its matrix products and convolutions."""
    bytes: float
    """Bytes that its operations read and write, each by itself."""
    operations: int
    """Operations that it launches."""


@dataclass(frozen=True)
class Traced:
    """What one training step would hold and do."""

    memory: dict[str, int]
    """Part ("weights", "gradients", "optimizer", "activations", "quantum states") -> bytes at the peak."""
    work: Work
    """Of one update."""
    n_weights: int
    n_trained: int
    kept: int
    """Bytes of weights that a checkpoint holds: frozen ones that are built anew are not among them."""
    linear: int
    """Frozen numbers in linear layers without the one that gives the logits: what 4 bits would hold."""
    at_update: int
    """Bytes held in the update of a GPU, which takes all weights at once, with one copy of each trained
    weight under SGD and two under Adam."""


def trace(workload: Workload, *, foreach: bool = False) -> Traced:
    """Memory at the peak of a training step, by part, and the step's work.

    Args:
        workload: What is trained.
        foreach: Whether the optimizer takes all weights at once, as it does on GPUs: in fewer operations, for
            one or two copies of the trained weights at a time.

    Raises:
        ValueError: The net or its task asks for values of tensors, whose shapes alone are known.
    """
    frozen = gc.get_freeze_count()  # by the caller, for whom it stays so
    gc.freeze()  # the collector looks only at what is made here
    try:
        with own_generators():
            with torch.device("meta") if workload.example is None else contextlib.nullcontext():
                model = workload.build(workload.training, True)
            if workload.example is not None:
                with layers.evaluating(model):
                    layers.called(model, workload.example)
            with FakeTensorMode(allow_non_fake_inputs=True):
                _leave_meta(model)
                return _traced(workload, model, foreach)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        step = "Leave out what selects by value, such as x[mask] or nonzero."
        told = checks.message("task", "have shapes that follow from shapes to be planned", str(error), step)
        raise ValueError(told) from None
    finally:
        if not frozen:
            gc.unfreeze()


def _leave_meta(model: nn.Module) -> None:
    """Puts fake tensors in place of those on the meta device: a batch from the CPU meets no other device."""
    known: dict[Tensor, Tensor] = {}  # what is tied stays so

    def moved(tensor: Tensor) -> Tensor:
        if tensor not in known:
            fake = torch.empty_like(tensor, device="cpu")
            is_weight = isinstance(tensor, nn.Parameter)
            known[tensor] = nn.Parameter(fake, tensor.requires_grad) if is_weight else fake
        return known[tensor]

    for module in model.modules():
        places: Any = (module._parameters, module._buffers)
        for tensors in places:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    tensors[name] = moved(tensor)


def _traced(workload: Workload, model: nn.Module, foreach: bool) -> Traced:
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    # Counted before layers are taken out.
    n_weights, n_trained = (sum(weight.numel() for weight in each) for each in (weights, trained))
    kept = sum(tensor.nbytes for tensor in kept_weights.of(model, rebuilt=True).values())
    copies = 1 if workload.training.optimizer == "sgd" else 2  # gradients; under Adam roots of moments too
    copied = copies * sum(weight.nbytes for weight in trained)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    linear = (each.weight for each in model.modules() if isinstance(each, nn.Linear) and each is not head)
    n_linear = sum(weight.numel() for weight in linear if not weight.requires_grad)
    gc.freeze()
    seen = _followed(model, lambda stack: _step(workload, model, foreach, stack))
    memory = max(seen.peaks.values(), key=lambda parts: sum(parts.values()))
    held = seen.held.get("weights", 0) + seen.held.get("optimizer", 0)
    return Traced(dict(memory), seen.work, n_weights, n_trained, kept, n_linear, held + copied)


# --- one step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """What a step was seen to hold and do."""

    peaks: Mapping[Hashable, Mapping[str, int]]
    """Place in the step -> part -> bytes at its peak there."""
    work: Work
    held: Mapping[str, int]
    """Part -> bytes after the step."""


def _step(workload: Workload, model: nn.Module, foreach: bool, stack: nn.ModuleList | None) -> _Seen:
    """What one training step holds and does; by layer of a stack, if there is one."""
    config = workload.training
    ledger = Ledger(config.gradient_checkpointing, closely=stack is not None)
    stepper = workload.stepper(model=model)
    for group in stepper.optimizer.param_groups if stepper.optimizer else ():
        group["foreach"] = foreach
    weights = list(model.parameters())
    for tensor in (*weights, *model.buffers()):
        ledger.add(tensor, "weights")
    with contextlib.ExitStack() as work:
        for weight in weights:
            if weight.requires_grad:
                add = weight.register_post_accumulate_grad_hook(lambda w: ledger.add(w.grad, "gradients"))
                work.callback(add.remove)
        work.enter_context(ledger.attributing(model))
        with ledger:
            if stack is None or layers.exchanged_parameters(model):  # circuits are read in the first pass
                _update(stepper, ledger, workload, FIRST)
            else:  # all that such a model trains has a gradient: no passes are needed for the moments
                for weight in weights:
                    weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
                with ledger.being("optimizer"):
                    stepper.update()
        ledger.begin()
        if stack is not None:
            work.enter_context(_placing(ledger, stack))
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
    return _Seen(dict(ledger.peaks), done, dict(ledger.live))


def _update(stepper: train.Stepper, ledger: Ledger, workload: Workload, size: int) -> tuple[Work, float]:
    """One update of at most `PASSES` of its pieces, the largest, and how many times as many there are.

    The work is what came before its last part, the optimizer's.
    """
    passes = stepper.passes(workload.batch(size))
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


class Ledger(TorchDispatchMode):
    """Which storages live, to what they belong, and what the operations that made them moved.

    Args:
        collects: Whether to collect garbage on the way to a peak. Where gradients are checkpointed, fake
            tensors wait for it in cycles; real ones are freed at once.
        closely: Whether peaks are kept for each place of a step that `within` names, and collected for
            exactly; else there is one peak, which garbage may raise by NEARLY.
    """

    def __init__(self, collects: bool = False, *, closely: bool = False) -> None:
        super().__init__()
        self.collects, self.closely = collects, closely
        self.live: Counter[str] = Counter()
        self.known: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self.doing = "activations"
        self.part: tuple[Hashable, ...] = ()
        self.begin()

    @property
    def peak(self) -> int:
        """The most bytes that lived at once."""
        return max(sum(parts.values()) for parts in self.peaks.values())

    def begin(self) -> None:
        """Forgets the peaks so far, not what lives."""
        gc.collect()
        self.peaks: dict[Hashable, Counter[str]] = {}
        self.work = Work(0, 0, 0)
        self._stand(((),))

    def enter(self, *part: Hashable) -> None:
        """Says which part of a step begins."""
        self.part = part
        self.within(["outside"])

    def within(self, names: Sequence[Hashable]) -> None:
        """Says where in this part of a step it is; one place may have several names."""
        if self.closely:
            if self.collects:
                gc.collect()
            self._stand(tuple((*self.part, name) for name in names))

    def _stand(self, places: tuple[Hashable, ...]) -> None:
        self.places = places
        self.looked = sum(self.live.values())
        self.least = 0
        self._note()

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
        total = sum(self.live.values())
        if total > (1 if self.closely else NEARLY) * self.looked:
            if self.collects:
                gc.collect()
                total = sum(self.live.values())
            self.looked = max(self.looked, total)
        if total > self.least:
            self._note()

    def _note(self) -> None:
        """Keeps what lives where it is more than has lived in this place."""
        total = sum(self.live.values())
        for place in self.places:
            if place not in self.peaks or total > sum(self.peaks[place].values()):
                self.peaks[place] = Counter(self.live)
        self.least = min(sum(self.peaks[place].values()) for place in self.places)

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
        try:
            result = function(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if function is not torch.ops.aten._local_scalar_dense.default:
                raise
            return 1.0 if args[0].dtype.is_floating_point else 1  # a task may count: any number will do
        returned = function._schema.returns
        if returned and all(each.alias_info and not each.alias_info.is_write for each in returned):
            return result  # a view: nothing is made, nothing is moved
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.work = Work(0, self.work.bytes + moved, self.work.operations + 1)
        if not function._schema.is_mutable:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage() not in self.known:
                    self.add(leaf, self.doing)
        return result

    @contextlib.contextmanager
    def attributing(self, model: nn.Module) -> Iterator[None]:
        """What circuits make, forward and backward, belongs to "quantum states"."""

        def enter() -> None:
            self.doing = "quantum states"

        def end() -> None:
            self.doing = "activations"

        def leave() -> Around:
            end()
            return enter, end

        with hooked(model, enter, leave):
            yield


# --- many equal layers --------------------------------------------------------------------------------------


def _followed(model: nn.Module, step: Callable[[nn.ModuleList | None], _Seen]) -> _Seen:
    """A step of the whole model; of one with many equal layers, all but a few are taken out for it."""
    layers = _stack(model)
    if layers is None:
        return step(None)
    n = len(layers)
    del layers[FEW + 1 :]
    more = step(layers)
    del layers[FEW:]
    few = step(layers)

    def at(less: float, more: float) -> int:
        return round(less + (n - FEW) * (more - less))

    def each(less: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
        return {part: at(less.get(part, 0), more.get(part, 0)) for part in {**less, **more}}

    work = Work(*(at(getattr(few.work, name), getattr(more.work, name)) for name in vars(few.work)))
    peaks = {place: each(few.peaks[place], more.peaks[place]) for place in few.peaks}
    return _Seen(peaks, work, each(few.held, more.held))


def _stack(model: nn.Module) -> nn.ModuleList | None:
    """The layers of a causal language model, where they are equal and many."""
    if not callable(getattr(model, "generate", None)):
        return None
    lists = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.ModuleList)]
    found = [each for name, each in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    if len(found) != 1 or len(found[0]) <= 2 * FEW + 1:
        return None  # as quick as it is
    first, *others = (_likeness(layer) for layer in found[0])
    return found[0] if all(other == first for other in others) else None


def _likeness(layer: nn.Module) -> list[Any]:
    """Equal for layers that hold and do the same."""
    plain = (int, float, str, bool, torch.dtype)
    kinds = [
        (name, type(part), {k: v for k, v in vars(part).items() if isinstance(v, plain) and k != "layer_idx"})
        for name, part in layer.named_modules()
    ]
    return [kinds, [(name, w.shape, w.dtype, w.requires_grad) for name, w in layer.named_parameters()]]


@contextlib.contextmanager
def _placing(ledger: Ledger, stack: nn.ModuleList) -> Iterator[None]:
    """Tells a ledger which of the layers a step is in, forward and backward."""
    n = len(stack)

    def names(index: int) -> list[Hashable]:
        return [*([index] if index < ENDS else []), *([index - n] if index >= n - ENDS else [])]

    with contextlib.ExitStack() as hooks:
        for index, layer in enumerate(stack):

            def enter(*_: Any, index: int = index) -> None:
                if ledger.part[0] == "forward":  # a layer that is computed again is on its way back
                    ledger.within(names(index))

            def leave(layer: nn.Module, inputs: Any, outputs: Any, *, index: int = index) -> None:
                if ledger.part[0] != "forward":
                    return
                output = outputs if isinstance(outputs, Tensor) else outputs[0]
                if output.requires_grad:
                    output.register_hook(lambda gradient: ledger.within(names(index)))
                if index == n - 1:
                    ledger.within(["after"])

            hooks.callback(layer.register_forward_pre_hook(enter).remove)
            hooks.callback(layer.register_forward_hook(leave).remove)
        yield
