"""Bitwise comparison of states, and helpers of the tests that need it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qnnkit.tasks import Classification


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, with tensors compared bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        alike = isinstance(other, dict) and one.keys() == other.keys()
        return alike and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def from_seed(make: Callable[[], Any], seed: int = 0) -> Any:
    """The result of `make()`, with weights that depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class At(Classification):
    """Calls `do` once, at the nth call in training or in validation, or (None) in either."""

    def __init__(self, n: int, do: Callable[[], None], training: bool | None = True):
        super().__init__()
        object.__setattr__(self, "asked", [n, do, training])

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        n, do, training = self.asked
        if training in (None, model.training):
            self.asked[0] -= 1
            if n == 1:
                do()
        return super().__call__(model, batch)


def raises(error: BaseException | type[BaseException] = KeyboardInterrupt) -> Callable[..., None]:
    """A function that raises the error for any arguments."""

    def do(*args: Any, **named: Any) -> None:
        raise error

    return do
