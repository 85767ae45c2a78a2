"""Gradient checkpointing: activations are forgotten on the way forward and computed again on the way back.

It costs about one forward pass more and keeps of each part its inputs alone. Gradients are the same numbers,
on a CPU the same bits. Reference: Chen et al. 2016, arXiv:1604.06174.
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
    """Inside, parts of `model` keep only their inputs for the way back; afterwards it is as it was.

    A part is what offers it: a layer with an attribute `gradient_checkpointing`, as those of transformers and
    `QuantumLayer` have it; a module with `recomputed = True`; otherwise every child of an `nn.Sequential` or
    `nn.ModuleList` that has children of its own, and an `nn.Sequential` of which none has. What stands in
    none of these keeps its activations.

    Running statistics and other buffers change once, and dropout draws the same numbers again. Names in
    `state_dict` and hooks on the parts stay. A backward pass may come after the end of this context.

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
    """Modules that are computed again as a whole."""
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
    """Whether it computes again by itself; a model of transformers knows which of its layers do."""
    return isinstance(getattr(module, "gradient_checkpointing", None), bool)


def _offers_inside(module: nn.Module) -> bool:
    """Whether to look for parts inside it, rather than take it as one."""
    if any(getattr(each, "recomputed", False) for each in module.modules()):
        return True
    if any(getattr(each, "supports_gradient_checkpointing", False) for each in module.modules()):
        return True
    offering = {id(weight) for each in module.modules() if _offers(each) for weight in each.parameters()}
    return bool(offering) and all(id(weight) in offering for weight in module.parameters())


def _again(module: nn.Module, compute: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """`compute(*given, **named)`, of which autograd keeps the arguments alone; it runs in `module`."""
    if not torch.is_grad_enabled():
        return compute(*given, **named)
    contexts = contextlib.nullcontext(), _Before(module)
    return checkpoint(compute, *given, use_reentrant=False, context_fn=lambda: contexts, **named)


class _Before:
    """What a part's forward pass changes, as it was before: its buffers, and the generator of MPS.

    Inside it as a context, which may be entered again, all that is as it was then, and may be changed without
    a trace. torch restores the generators of the CPU and of CUDA by itself.
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
    """An attribute of a module, set inside."""
    had, before = name in vars(module), vars(module).get(name)
    vars(module)[name] = value
    try:
        yield
    finally:
        if had:
            vars(module)[name] = before
        else:
            vars(module).pop(name, None)
