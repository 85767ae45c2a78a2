"""What Python does to tensors, recorded without values, and what follows from the record.

The Python runs on tensors that have a shape and a dtype, but no values, once for each of two batch sizes.
What differs between the two records depends on the size; the rest is one graph. Its operations show, without
reading any number, which angles are linear and that no sample depends on another.
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
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ROWS, SHARED = 1, 2
"""Bits: a tensor was computed from what differs between samples, from what all samples share."""
aten = torch.ops.aten

MOVES = names(
    "reshape expand permute transpose t unsqueeze squeeze select slice unbind split split_with_sizes "
    "index_select flip roll diagonal clone alias cat stack repeat constant_pad_nd getitem index gather "
    "lift_fresh_copy"
)
"""Operations that copy numbers to other places."""
LINEAR = MOVES | names("add sub rsub neg sum mean cumsum")
PRODUCTS = names("mul mm bmm mv addmm baddbmm")
CONSTANT = names("zeros_like ones_like full_like new_zeros new_ones new_full")
"""Operations whose result depends on the shape of a tensor only."""
KEEP_SAMPLES = CONSTANT | names(
    "expand permute transpose t unsqueeze clone alias detach repeat getitem lift_fresh_copy _to_copy stack"
)
"""Operations that never mix the entries of an axis which keeps its length, whatever axis it is."""
ALONG = names(
    "select slice unbind split split_with_sizes index_select flip roll gather cat squeeze sort topk median "
    "cumsum cumprod sum mean prod amax amin max min argmax argmin any all std var logsumexp "
    "linalg_vector_norm _softmax _log_softmax"
)
"""Operations that mix the entries of the axes named by `dim` or `dims`, and of no others."""
SIZES = names("size shape repeats")
"""Arguments that may be the size of the batch."""


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

BATCH = object()
"""Stands for the number of samples where a recorded operation takes it."""


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
    axis: int | None = None
    """Which axis holds the samples."""

    @property
    def name(self) -> str:
        return "getitem" if self.func is operator.getitem else self.func.overloadpacket.__name__  # pyright: ignore

    @property
    def leaves(self) -> list[Any]:
        return tree_leaves((self.args, self.kwargs))

    def argument(self, *names: str) -> Any:
        """The argument of one of these names; None where the operation has none."""
        if self.func is operator.getitem:
            return None
        given = {each.name: each.default_value for each in self.func._schema.arguments}  # pyright: ignore
        given |= dict(zip(given, self.args, strict=False)) | (self.kwargs or {})
        return next((given[name] for name in names if name in given), None)


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

    def argument(
        self, shape: Sequence[int], dtype: torch.dtype, sources: int, axis: int | None = None
    ) -> Traced:
        """A traced tensor that stands for an argument of the QNode."""
        shadow = torch.empty(shape, dtype=dtype, device="meta")
        return self._traced(Node(None, shadow=shadow, sources=sources, degree=1, axis=axis))

    def refuse(self, reason: str) -> NotFusable:
        """The exception for a reason, which holds even if somebody catches it."""
        self.refusal = self.refusal or reason
        return NotFollowed(reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, leaves = kwargs or {}, tree_leaves((args, kwargs))
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
        shadows = func(*tree_map(_shadow, args), **tree_map(_shadow, kwargs))
        func = aten.reshape.default if func in (aten.view.default, aten._unsafe_view.default) else func
        node = Node(func, tree_map(_kept, args), tree_map(_kept, kwargs))
        if isinstance(shadows, Tensor):
            node.shadow = shadows
            return self._traced(node)
        self.nodes.append(node)
        return type(shadows)(
            self._traced(Node(operator.getitem, (node, i), {}, shadow)) for i, shadow in enumerate(shadows)
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


# --- two records become one graph -----------------------------------------------------------------


def merge(nodes: Sequence[Node], others: Sequence[Node], sizes: tuple[int, int]) -> None:
    """Compares two records of the same Python; in the first, the size of the batch becomes `BATCH`.

    Then tells of each node of the first what it depends on, and how; see `Node`.

    Args:
        nodes: At the first size of the batch.
        others: At the other.
        sizes: Both; equal where the arguments have no batch.

    Raises:
        NotFusable: The records differ in more than the size, or samples depend on each other.
    """
    differs = NotFusable(_DIFFERS if sizes[0] == sizes[1] else _ON_SIZE)
    if len(nodes) != len(others):
        raise differs
    place = {id(node): i for i, node in enumerate(others)}
    for node, other in zip(nodes, others, strict=True):
        leaves, form = tree_flatten((node.args, node.kwargs))
        if node.func is not other.func or len(leaves) != len(other.leaves):
            raise differs
        for k, (a, b) in enumerate(zip(leaves, other.leaves, strict=True)):
            if not (nodes[place[id(b)]] is a if isinstance(b, Node) else _same(a, b)):
                leaves[k] = _joined(a, b, sizes)
                if leaves[k] is None:
                    raise differs
        node.args, node.kwargs = tree_unflatten(leaves, form)
        if node.func is not None:
            _describe(node, other, sizes)


_DIFFERS = "its Python computes something else each time it runs"
_ON_SIZE = "its Python depends on the size of the batch"
_MIXES = "its Python mixes samples of the batch"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and (a.is_meta or torch.equal(a.nan_to_num(), b.nan_to_num()))
    return type(a) is type(b) and bool(a == b or a != a)


def _joined(a: Any, b: Any, sizes: tuple[int, int]) -> Any:
    """What stands for arguments that differ between two sizes of the batch; None where nothing does."""
    if sizes[0] != sizes[1] and type(a) is type(b) is int and (a, b) == sizes:
        return BATCH
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.ndim == b.ndim:  # a column of ones, such as
        for axis in [axis for axis in range(a.ndim) if (a.shape[axis], b.shape[axis]) == sizes]:
            first = a.narrow(axis, 0, 1)
            if _same(first.expand_as(a), a) and _same(first.expand_as(b), b):
                shape = [*a.shape[:axis], BATCH, *a.shape[axis + 1 :]]
                return Node(aten.expand.default, (first, shape), {}, a.to("meta"), axis=axis)
    return None


def _describe(node: Node, other: Node, sizes: tuple[int, int]) -> None:
    """Tells what a node depends on, how, and which of its axes holds the samples."""
    given = [leaf for leaf in node.leaves if isinstance(leaf, Node)]
    node.degree = _degree(node, given)
    for each in given if node.degree else ():
        node.sources |= each.sources
    if sizes[0] == sizes[1]:
        return
    if node.shadow is not None and other.shadow is not None:
        shapes = list(zip(node.shadow.shape, other.shadow.shape, strict=True))
        varying = [axis for axis, (a, b) in enumerate(shapes) if a != b]
        lost = not varying and any(each.axis is not None for each in given)
        if lost or len(varying) > 1 or (varying and shapes[varying[0]] != sizes):
            raise NotFusable(_MIXES)
        node.axis = varying[0] if varying else None
    if not _keeps_samples(node, [each for each in given if each.axis is not None]):
        raise NotFusable(_MIXES)


def _degree(node: Node, given: list[Node]) -> int:
    degrees, name = [each.degree for each in given], node.name
    if not any(degrees) or name in CONSTANT:
        return 0
    if name in LINEAR | PRODUCTS | {"_to_copy"} and _loses_digits(node, given):
        return 2
    if name in LINEAR | {"_to_copy"}:
        return max(degrees)
    if name in PRODUCTS:
        return min(sum(degrees), 2)
    if name == "div" and node.argument("rounding_mode") is None:
        return degrees[0] if isinstance(node.args[0], Node) and not any(degrees[1:]) else 2
    return 2


def _loses_digits(node: Node, given: list[Node]) -> bool:
    """Whether the result has a dtype that holds fewer numbers than an argument's."""
    if node.shadow is None:  # several results, of the argument's dtype
        return False
    to, shadows = node.shadow.dtype, [each.shadow for each in given if each.degree]
    dtypes = [shadow.dtype for shadow in shadows if shadow is not None]
    return any(not d.is_floating_point or torch.promote_types(d, to) != to for d in dtypes)


def _keeps_samples(node: Node, had: list[Node]) -> bool:
    """Whether an operation is known to leave every sample to itself.

    Args:
        node: The operation.
        had: Its arguments that have an axis of samples.
    """
    if node.func is operator.getitem:
        return True
    names = [each.name for each in node.func._schema.arguments]  # pyright: ignore
    if any(BATCH in tree_leaves([node.argument(name)]) for name in names if name not in SIZES):
        raise NotFusable(_ON_SIZE)
    behind = {id(each): each.axis - each.shadow.ndim for each in had}  # pyright: ignore  # counted from the last axis
    if not had or node.name in KEEP_SAMPLES:
        return True
    if torch.Tag.pointwise in node.func.tags:  # pyright: ignore
        return len(set(behind.values())) == 1
    if node.name == "reshape":  # rows stay rows if as many numbers precede and follow
        return had[0].shadow.shape[: had[0].axis].numel() == node.shadow.shape[: node.axis].numel()  # pyright: ignore
    if node.name == "constant_pad_nd":
        return min(node.args[1]) >= 0
    if node.name == "index":
        indices: Any = node.args[1]
        axis: Any = node.args[0].axis if isinstance(node.args[0], Node) else None
        return had == [node.args[0]] and (axis >= len(indices) or indices[axis] is None)
    if node.name in PRODUCTS:
        a, b = node.args[-2:]
        return behind.get(id(a)) != -1 and behind.get(id(b)) != (-1 if node.name == "mv" else -2)
    along = node.argument("dim", "dims")
    along = along if isinstance(along, list | tuple) or along is None else [along]
    is_first = node.name == "slice" and node.argument("start") in (None, 0) and node.argument("step") == 1
    if is_first and ((end := node.argument("end")) is None or end is BATCH or end == 2**63 - 1):
        return True
    free = all(each.axis != axis % each.shadow.ndim for each in had for axis in along or ())  # pyright: ignore
    return node.name in ALONG and bool(along) and free


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

    def __call__(self, arguments: Sequence[Tensor], batch: int, *, double: bool = False) -> list[Tensor]:
        """The results.

        Args:
            arguments: As recorded, for any batch size.
            batch: Number of samples.
            double: Whether constants are taken as float64.
        """
        results: dict[int, Any] = dict(zip(map(id, self.arguments), arguments, strict=True))
        device = arguments[0].device if arguments else torch.device("cpu")

        def result(node: Node) -> Any:
            args, kwargs = tree_map(put, (node.args, node.kwargs))
            return node.func(*args, **kwargs)  # pyright: ignore[reportOptionalCall]

        def put(leaf: Any) -> Any:
            if isinstance(leaf, Node):  # a node made of constants alone is in no list
                return results[id(leaf)] if id(leaf) in results else result(leaf)
            if leaf is BATCH:
                return batch
            if isinstance(leaf, Tensor):
                return self._moved(leaf, device, double)
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point and double:
                return torch.float64
            return device if isinstance(leaf, torch.device) else leaf

        for node in self.nodes:
            results[id(node)] = result(node)
        return [results[id(node)] for node in self.wanted]


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
            return torch.stack([angle.reshape(()) for angle in graph(each, 1, double=True)])

        n = sum(sizes)
        points = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)])
        with contextlib.suppress(RuntimeError):  # numbers of fixed dtypes that do not mix with float64
            values = torch.func.vmap(angles)(points).numpy()
            self.offset, self.matrix, self.affine = values[0], values[1:] - values[0], True
