"""What a QNode's Python reads is noticed when it changes, or else refused; no user code runs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import time
import types

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import circuits
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.guards import watch

DEVICE = circuits.make_device("default.qubit", 2)
STORE = {"alias": None}
TENSOR = torch.ones(3)
LARGE = np.zeros(5000)
ITERATOR, GENERATOR = iter([1.0]), np.random.default_rng(0)


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    other: float = 1.0

    def __eq__(self, other):
        raise AssertionError("user code ran")

    __hash__ = __repr__ = __eq__  # pyright: ignore


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), 1.0

    def forward(self, inputs):
        return self.linear(inputs) * time.time()

    def circuit(self, inputs, weights):
        return self.scale if self.training else 2 * self.scale


class Raises:
    scale = 1.0

    @property
    def other(self):
        raise AssertionError("user code ran")


CONFIG, NET, RAISES = Config(), Net(), Raises()


def wrapped(read):
    return qp.QNode(lambda inputs, weights: qp.RX(read(), wires=0) and qp.expval(qp.Z(0)), DEVICE)


def local_write():
    found = [0]
    found[0] += 1
    found.append(2)
    return found[0]


REFUSED = {
    "generator": lambda: GENERATOR.normal(),
    "iterator": lambda: next(ITERATOR),
    "alias of a module": lambda: [np][0].random.rand(),
    "file": lambda: open("x"),  # noqa: PTH123, SIM115
    "address": lambda: id(STORE),
    "attribute of a class": lambda: type.__setattr__(Config, "scale", 2.0),
    "whether a tensor is traced": lambda: qp.math.is_abstract(TENSOR),
    "errors that are suppressed": lambda: contextlib.suppress(TypeError),
    "called net": lambda: NET(1),
    "large array": lambda: LARGE[0],
    "cache": functools.cache(lambda: 1),
    "code": lambda: eval("1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    with pytest.raises(NotFusable, match=r"^its "):
        watch(wrapped(REFUSED[name]))


def test_what_was_changed_is_put_back():
    kinds = collections.deque, collections.OrderedDict, collections.Counter, dict, set, list
    held = {kind.__name__: kind(("a", "b")) for kind in kinds[-2:] + kinds[:1]}
    held |= {kind.__name__: kind(a=1, b=2) for kind in kinds[1:4]}
    held |= {"array": np.ones(3), "tensor": torch.ones(3), "object": types.SimpleNamespace(scale=1.0)}
    held["operator"] = qp.s_prod(0.5, qp.Z(0))
    held["collides"] = set((7, 15))  # added in the order that it is read in, it would be read in another
    before = watch(wrapped(lambda: held))
    parts = dict(held)
    for name in ("array", "tensor"):
        held[name] *= 2
    for name in ("deque", "set", "collides", "list", "dict", "OrderedDict", "Counter"):
        held[name].clear()
    held["object"].other, held["operator"].scalar = 2.0, 3.0
    held["operator"].pauli_rep.clear()
    held.clear()
    assert not before.holds()
    before.restore()
    assert before.holds() and list(held) == list(parts)
    assert all(held[name] is part for name, part in parts.items())


def test_what_is_not_read_may_change():
    """A method of a net does not lead to its layers, nor a chain of attributes to an object's other ones."""
    qnode = wrapped(lambda: CONFIG.scale + NET.circuit(0, 0) + RAISES.scale + local_write())
    first = watch(qnode)
    NET.linear, NET.log, CONFIG.other = nn.Identity(), types.SimpleNamespace(), 7.0
    assert first.holds()
    NET.eval()
    assert not first.holds()
    NET.train()
    assert first.holds()


def test_no_user_code_runs():
    watch(wrapped(lambda: (STORE["alias"], RAISES.other, CONFIG == RAISES)))


def test_the_qnode_itself():
    qnode = wrapped(lambda: 1.0)
    first = watch(qnode)
    qnode.func = lambda inputs, weights: qp.expval(qp.X(0))
    assert not first.holds()
