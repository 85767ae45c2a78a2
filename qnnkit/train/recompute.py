"""Gradient checkpointing: the backward pass recomputes activations that the forward pass does not keep.

It costs about one more forward pass and keeps only the inputs of each part. Gradients are the same numbers,
and on a CPU the same bits. Reference: Chen et al. 2016, arXiv:1604.06174.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """A context in which parts of `model` keep only their inputs for the backward pass.

    A part is a layer with an attribute `gradient_checkpointing`, as in transformers and `QuantumLayer`; a
    module with `recomputed = True`; otherwise every child of an `nn.Sequential` or `nn.ModuleList` that has
    children itself, and an `nn.Sequential` whose children have none. Modules outside of all parts keep their
    activations.

    Running statistics and other buffers are updated once, and dropout draws the same numbers again. Names in
    `state_dict` and hooks on the parts do not change. The backward pass may follow after the context ends.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> with recomputing(model):
        ...     loss = model(torch.rand(4, 2)).sum()
        >>> loss.backward()
    """
    with contextlib.ExitStack() as changes:
        for module in model.modules():
            if isinstance(getattr(module, "gradient_checkpointing", None), bool):
                again = functools.partial(_again, module)
                changes.enter_context(_set(module, "_gradient_checkpointing_func", again))
                changes.enter_context(_set(module, "gradient_checkpointing", True))
        for part in _parts(model):
            changes.enter_context(_set(part, "forward", functools.partial(_again, part, part.forward)))
        yield


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that are recomputed as a whole."""
    children = dict.fromkeys(module.children())
    listed = isinstance(module, nn.Sequential | nn.ModuleList)
    plain = isinstance(module, nn.Sequential) and not any(map(_is_composed, children))
    if getattr(module, "recomputed", False) or (plain and not _offers_inside(module)):
        yield module
    elif not _offers(module):
        for child in children:
            if listed and _is_composed(child) and not _offers_inside(child):
                yield child
            else:
                yield from _parts(child)


def _is_composed(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _offers(module: nn.Module) -> bool:
    """Whether a module recomputes by itself; a model of transformers decides which of its layers do."""
    return isinstance(getattr(module, "gradient_checkpointing", None), bool)


def _offers_inside(module: nn.Module) -> bool:
    """Whether to look for parts inside a module instead of treating it as one part."""
    if any(getattr(each, "recomputed", False) for each in module.modules()):
        return True
    if any(getattr(each, "supports_gradient_checkpointing", False) for each in module.modules()):
        return True
    offering = {id(weight) for each in module.modules() if _offers(each) for weight in each.parameters()}
    return bool(offering) and all(id(weight) in offering for weight in module.parameters())


def _again(module: nn.Module, compute: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """`compute(*arguments, **named)` in `module`, for which autograd keeps only the arguments."""
    if not torch.is_grad_enabled():
        return compute(*arguments, **named)
    contexts = contextlib.nullcontext(), _Before(module)
    return checkpoint(compute, *arguments, use_reentrant=False, context_fn=lambda: contexts, **named)


class _Before:
    """The buffers of a part and the generator of MPS, as they were before its forward pass.

    As a context, which may be entered repeatedly, it restores this state inside and discards all changes at
    the end. torch itself restores the generators of the CPU and of CUDA.
    """

    def __init__(self, module: nn.Module):
        parts = [part for part in module.modules() if part.training and part._buffers]
        self.before = [(part, _copies(part._buffers)) for part in parts]
        on_mps = any(weight.device.type == "mps" for weight in module.parameters())
        self.generator = torch.mps.get_rng_state() if on_mps else None

    def __enter__(self) -> None:
        self.after = [(part, dict(part._buffers)) for part, _ in self.before]
        for part, values in self.before:
            part._buffers.update(_copies(values))
        if self.generator is not None:
            self.generator_after = torch.mps.get_rng_state()
            torch.mps.set_rng_state(self.generator)

    def __exit__(self, *_: object) -> None:
        for part, buffers in self.after:
            part._buffers.update(buffers)
        if self.generator is not None:
            torch.mps.set_rng_state(self.generator_after)


def _copies(buffers: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: buffer if buffer is None else buffer.detach().clone() for name, buffer in buffers.items()}


@contextlib.contextmanager
def _set(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute of a module has a value."""
    had, before = name in vars(module), vars(module).get(name)
    vars(module)[name] = value
    try:
        yield
    finally:
        if had:
            vars(module)[name] = before
        else:
            vars(module).pop(name, None)
