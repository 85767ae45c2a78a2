"""What Python does to tensors, recorded without values.

The Python runs on tensors that have a shape and a dtype, but no values. Its operations show, without reading
any number, which angles are affine in the arguments. A batch is one sample's record, for each of its samples:
a second record, of several samples, has to give each the same numbers, whatever the others are.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import autoray
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def mapped(change: Callable[[Any], Any], given: Any) -> Any:
    """What torch's operations take, changed leaf by leaf; several times as fast as torch's own pytrees."""
    if isinstance(given, list | tuple):
        return [mapped(change, each) for each in given]
    return {k: mapped(change, v) for k, v in given.items()} if isinstance(given, dict) else change(given)


def leaves_of(given: Any) -> list[Any]:
    """The leaves of what torch's operations take."""
    leaves: list[Any] = []
    mapped(leaves.append, given)
    return leaves


ROWS, SHARED = 1, 2
"""Bits: a tensor was computed from what differs between samples, from what all samples share."""
aten = torch.ops.aten

LINEAR = names(
    "reshape expand permute transpose t unsqueeze squeeze select slice unbind split split_with_sizes "
    "index_select flip roll diagonal clone alias cat stack repeat constant_pad_nd getitem index gather "
    "lift_fresh_copy add sub rsub neg sum mean cumsum _to_copy"
)
PRODUCTS = names("mul mm bmm mv addmm baddbmm")
CONSTANT = names("zeros_like ones_like full_like new_zeros new_ones new_full")
"""Operations whose result depends on the shape of a tensor only."""


class NotFusable(Exception):
    """Why a circuit has no fused program, in words that complete "because ..."."""


class NotFollowed(NotFusable):
    """Some Python needs the numbers of its arguments."""


class Changed(NotFusable):
    """Classes are not as PennyLane made them."""

    def __init__(self, kinds: set[type]):
        super().__init__(f"{min(kind.__name__ for kind in kinds)} is not as PennyLane made it")
        self.kinds = kinds


class Traced(Tensor):
    """A tensor without values: reading one stops the trace."""

    node: Node
    recorder: Recorder
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, node: Node, recorder: Recorder) -> Traced:
        like: Any = node.shadow
        traced = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=recorder.device
        )
        traced.node, traced.recorder = node, recorder
        return traced

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotFollowed("its Python computes where it cannot be followed")

    def _read(self, *arguments: Any) -> Any:
        raise self.recorder.refuse("its Python looks at the values of its arguments")

    numpy = tolist = __array__ = data_ptr = _read  # pyright: ignore[reportAssignmentType]


autoray.register_backend(Traced, "torch")  # PennyLane's qp.math asks autoray


@dataclass(eq=False)
class Node:
    """An operation on tensors: `func(*args)`, in which nodes stand for their results."""

    func: Callable[..., Any] | None
    """None for an argument of the QNode."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    shadow: Any = None
    """The result, a tensor on the meta device, which tells shape and dtype."""
    sources: int = 0
    """Bits: ROWS, SHARED."""
    degree: int = 0
    """0: a constant; 1: affine in the sources; 2: anything."""

    @property
    def name(self) -> str:
        return "getitem" if self.func is operator.getitem else self.func.overloadpacket.__name__  # pyright: ignore

    @property
    def leaves(self) -> list[Any]:
        return leaves_of((self.args, self.kwargs or {}))

    def described(self) -> Node:
        """The node, once its degree and its sources are known."""
        given = [leaf for leaf in self.leaves if isinstance(leaf, Node)]
        degrees, name = [each.degree for each in given], self.name
        dtypes = {each.shadow.dtype for each in given if each.degree and each.shadow is not None}
        self.degree = 2
        if not any(degrees) or name in CONSTANT:
            self.degree = 0
        elif self.shadow is not None and any(
            torch.promote_types(d, self.shadow.dtype) != self.shadow.dtype for d in dtypes
        ):
            pass  # digits are lost
        elif name in LINEAR:
            self.degree = max(degrees)
        elif name in PRODUCTS:
            self.degree = min(sum(degrees), 2)
        elif name == "div" and isinstance(self.args[0], Node) and not any(degrees[1:]):
            self.degree = degrees[0] if (self.kwargs or {}).get("rounding_mode") is None else 2
        for each in given if self.degree else ():
            self.sources |= each.sources
        return self


class Recorder(TorchDispatchMode):
    """Records what is computed from traced tensors; computes what does not depend on them.

    Args:
        device: Of the traced tensors.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self.nodes, self.refusal = device, [], None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, a second's work, to keep it out of here

    def argument(self, shape: Sequence[int], dtype: torch.dtype, sources: int) -> Traced:
        """A traced tensor that stands for an argument of the QNode."""
        shadow = torch.empty(shape, dtype=dtype, device="meta")
        return self._traced(Node(None, shadow=shadow, sources=sources, degree=1))

    def refuse(self, reason: str) -> NotFusable:
        """The exception for a reason, which holds even if somebody catches it."""
        self.refusal = self.refusal or reason
        return NotFollowed(reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = leaves_of((args, kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise self.refuse("its Python draws random numbers")
        outside = [leaf for leaf in leaves if type(leaf) is not Traced and isinstance(leaf, Tensor)]
        if any(leaf.requires_grad for leaf in outside):
            raise self.refuse("it uses a tensor from outside that requires a gradient")
        if not any(type(leaf) is Traced for leaf in leaves):
            return func(*args, **kwargs)
        looks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        masks = any(getattr(leaf, "dtype", None) in (torch.bool, torch.uint8) for leaf in leaves)
        if looks and (func is not aten.index.Tensor or masks):
            raise self.refuse("its Python looks at the values of its arguments")
        if func._schema.is_mutable:
            raise self.refuse("its Python changes a tensor in place")
        shadows = func(*mapped(_shadow, args), **mapped(_shadow, kwargs))
        func = aten.reshape.default if func in (aten.view.default, aten._unsafe_view.default) else func
        node = Node(func, mapped(_kept, args), mapped(_kept, kwargs))
        if isinstance(shadows, Tensor):
            node.shadow = shadows
            return self._traced(node.described())
        self.nodes.append(node.described())
        return type(shadows)(
            self._traced(Node(operator.getitem, (node, i), {}, shadow).described())
            for i, shadow in enumerate(shadows)
        )

    def _traced(self, node: Node) -> Traced:
        self.nodes.append(node)
        return Traced(node, self)


def _shadow(given: Any) -> Any:
    if isinstance(given, Traced):
        return given.node.shadow
    if isinstance(given, torch.device):
        return torch.device("meta")
    return given.to("meta") if isinstance(given, Tensor) else given


def _kept(given: Any) -> Any:
    """A constant may be changed later: the record has a copy."""
    if isinstance(given, Traced):
        return given.node
    return given.detach().clone() if isinstance(given, Tensor) else given


# --- the graph ------------------------------------------------------------------------------------


class Graph:
    """Some results of recorded operations, as a function of the arguments.

    Args:
        nodes: In the order in which they were computed; the first are the arguments.
        n_arguments: How many these are.
        wanted: The results.
    """

    def __init__(self, nodes: Sequence[Node], n_arguments: int, wanted: Sequence[Node]):
        self.arguments, self.wanted = list(nodes[:n_arguments]), list(wanted)
        needed, self.nodes = set(map(id, wanted)), []
        for node in reversed(nodes[n_arguments:]):
            if id(node) in needed:
                needed |= set(map(id, node.leaves))
                self.nodes.insert(0, node)
        self._copies: dict[tuple, Tensor] = {}

    def _moved(self, constant: Tensor, device: torch.device, double: bool) -> Tensor:
        """A constant on a device; moved once, since a device waits for what the host sends."""
        key = id(constant), device, double
        if key not in self._copies:
            dtype = torch.float64 if double and constant.is_floating_point() else constant.dtype
            self._copies[key] = constant.to(device, dtype)
        return self._copies[key]

    @property
    def degree(self) -> int:
        return max((node.degree for node in self.wanted), default=0)

    @property
    def is_polynomial(self) -> bool:
        """Whether there are only sums and products."""
        return all(node.degree < 2 or node.name in LINEAR | PRODUCTS for node in self.nodes)

    def __call__(self, arguments: Sequence[Tensor], *, double: bool = False) -> list[Tensor]:
        """The results.

        Args:
            arguments: Of the recorded shapes.
            double: Whether constants are taken as float64.
        """
        results: dict[int, Any] = dict(zip(map(id, self.arguments), arguments, strict=True))
        device = arguments[0].device if arguments else torch.device("cpu")

        def result(node: Node) -> Any:
            args, kwargs = mapped(put, (node.args, node.kwargs or {}))
            return node.func(*args, **kwargs)  # pyright: ignore[reportOptionalCall]

        def put(leaf: Any) -> Any:
            if isinstance(leaf, Node):  # a node made of constants alone is in no list
                return results[id(leaf)] if id(leaf) in results else result(leaf)
            if isinstance(leaf, Tensor):
                return self._moved(leaf, device, double)
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point and double:
                return torch.float64
            return device if isinstance(leaf, torch.device) else leaf

        for node in self.nodes:
            results[id(node)] = result(node)
        return [results[id(node)] for node in self.wanted]

    def for_each(self, arguments: Sequence[Tensor], *, double: bool = False) -> list[Tensor]:
        """The results of every sample, of shape (batch, ...).

        Args:
            arguments: As recorded; axis 0 of those that differ between samples counts these.
            double: As above.
        """
        on_rows = [bool(each.sources & ROWS) for each in self.arguments]
        if not self.wanted or not any(on_rows):
            return self(arguments, double=double) if self.wanted else []

        def of_one(*given: Tensor) -> list[Tensor]:
            formed = zip(given, self.arguments, strict=True)
            return self([each.reshape(argument.shadow.shape) for each, argument in formed], double=double)

        return torch.func.vmap(of_one, tuple(0 if each else None for each in on_rows))(*arguments)


def agree(one: Graph, many: Graph) -> bool:
    """Whether several samples get each what one gets alone; tried with random numbers.

    Args:
        one: The results of one sample; axis 0 of its batched arguments has length 1.
        many: Those of several.
    """
    generator, given = torch.Generator().manual_seed(0), []
    for each in many.arguments:
        kind = torch.complex128 if each.shadow.is_complex() else torch.float64
        given.append(torch.rand(each.shadow.shape, generator=generator, dtype=kind))
    pairs = zip(one.wanted, one.for_each(given, double=True), many(given, double=True), strict=True)
    for result, alone, together in pairs:  # of shapes `shape`, (n, *shape), and `shape` or (n, *shape[1:])
        shape = result.shadow.shape
        if together.shape not in (shape, (len(alone), *shape[1:])):
            return False
        together = together if together.shape == shape else together.unsqueeze(1)
        if not torch.allclose(alone, together.expand_as(alone), rtol=1e-5, atol=1e-6):
            return False
    return True


class Angles:
    """Angles as a function of one vector: a sample's row, or what all samples share.

    If all are affine in it, they are vector @ matrix + offset. Else the graph has to be run, and the vector
    is the angles themselves.

    Args:
        graph: Computes the angles.
        shapes: Of the graph's arguments, for a batch of one.
        free: Numbers of the arguments that they may depend on, flattened and joined.
        sources: The bits of these arguments.
    """

    def __init__(self, graph: Graph, shapes: Sequence[tuple[int, ...]], free: Sequence[int], sources: int):
        self.graph, self.size, self.affine = graph, len(graph.wanted), False
        self.matrix, self.offset = np.eye(self.size), np.zeros(self.size)
        if not self.size or graph.degree > 1 or any(node.sources & ~sources for node in graph.wanted):
            return
        sizes = [math.prod(shapes[i]) for i in free]

        def angles(vector: Tensor) -> Tensor:
            parts = iter(vector.split(sizes))
            given = enumerate(shapes)
            each = [next(parts).reshape(s) if i in free else vector.new_zeros(s) for i, s in given]
            return torch.stack([angle.reshape(()) for angle in graph(each, double=True)])

        n = sum(sizes)
        points = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)])
        with contextlib.suppress(RuntimeError):  # numbers of fixed dtypes that do not mix with float64
            values = torch.func.vmap(angles)(points).numpy()
            self.offset, self.matrix, self.affine = values[0], values[1:] - values[0], True
