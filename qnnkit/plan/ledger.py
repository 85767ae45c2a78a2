"""Which tensors live at the same time while a training step is traced, and what is done to them."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qnnkit.measure.parts import nodes_between, quantum_parts
from qnnkit.plan.prediction import Work

NEARLY = 1.02
"""Garbage is collected where what lives exceeds by so much what lived at the last collection."""


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
