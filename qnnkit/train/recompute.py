"""Gradient checkpointing: activations are forgotten on the way forward and computed again on the way back.

It costs about one forward pass more and keeps of each part its inputs alone. Gradients are the same numbers,
on a CPU the same bits. Reference: Chen et al. 2016, arXiv:1604.06174.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Inside, parts of `model` keep only their inputs for the way back; afterwards it is as it was.

    A part is what offers it: a layer with an attribute `gradient_checkpointing`, as those of transformers and
    `QuantumLayer` have it; a module with `recomputed = True`; and otherwise every child of the outermost
    `nn.Sequential` and `nn.ModuleList`, where plain layers in a row (no children of their own) are cut into
    as many parts as the root of their number. What stands in none of these keeps its activations.

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
        for part, forward in _parts(model):
            changes.enter_context(_set(part, "forward", forward))
        yield


def _parts(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """Modules whose forward pass is exchanged, each with what takes its place."""
    if getattr(module, "recomputed", False):
        yield module, functools.partial(_again, module, module.forward)
    elif _is_chain(module):
        yield module, functools.partial(_in_segments, _segments(module))
        yield from (found for child in module if _offers_inside(child) for found in _parts(child))
    elif isinstance(module, nn.ModuleList):
        for child in dict.fromkeys(module):
            if _offers_inside(child):
                yield from _parts(child)
            else:
                yield child, functools.partial(_again, child, child.forward)
    elif not _offers(module):
        yield from (found for child in dict.fromkeys(module.children()) for found in _parts(child))


def _is_chain(module: nn.Module) -> TypeGuard[nn.Sequential]:
    return type(module).forward is nn.Sequential.forward and "forward" not in vars(module)


def _segments(chain: nn.Sequential) -> list[tuple[nn.Module, bool]]:
    """What a chain runs one after the other, and whether it is computed again as a whole."""
    found: list[tuple[nn.Module, bool]] = []
    for plain, children in itertools.groupby(chain, _is_plain):
        row = list(children)
        if plain:
            size = math.ceil(len(row) / math.isqrt(len(row)))
            found += [(nn.Sequential(*row[i : i + size]), True) for i in range(0, len(row), size)]
        else:
            found += [(child, not _offers_inside(child)) for child in row]
    return found


def _is_plain(module: nn.Module) -> bool:
    return next(module.children(), None) is None and not _offers_inside(module)


def _in_segments(segments: list[tuple[nn.Module, bool]], inputs: Any) -> Any:
    for part, whole in segments:
        inputs = _again(part, part, inputs) if whole else part(inputs)
    return inputs


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
