"""The fused program: runs a traced circuit on a whole batch, in real arithmetic, by a few matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qnnkit.simulator import program
from qnnkit.simulator.angles import Angles
from qnnkit.simulator.readout import readout
from qnnkit.simulator.trace import NotFusable, Trace

COMPLEX = -1
"""Label of the axis (re, im) among the wires' axes."""
MOST_WIRES = 24
CHUNK_BYTES = 2**29
"""Memory that the states of one step may take together; a larger batch is cut into parts."""


@dataclass(frozen=True)
class Move:
    """How the state's axes come into the order that a block needs: view, permute."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


class Fused:
    """A circuit as a program of torch operations, differentiable by autograd in inputs and weights.

    Args:
        trace: What the circuit does.
        inputs: Example, of shape (batch, n_features) or (n_features,).
        weights: Examples, in the order of the trace.

    Raises:
        NotFusable: Something in it has no fused form.
    """

    def __init__(self, trace: Trace, inputs: Tensor, weights: Sequence[Tensor]):
        self.trace, self.n_wires = trace, len(trace.wires)
        if self.n_wires > MOST_WIRES:
            gib = 2 ** (self.n_wires + 3) / 2**30
            raise NotFusable(f"a state of {self.n_wires} wires takes {gib:.0f} GiB for every sample")
        segments, self.phases, on_weights, on_inputs = program.stages(trace)
        self.readout = readout(trace.measurements, trace.wires)
        self.n_features = inputs.shape[-1]
        example, examples = inputs.double(), [weight.double() for weight in weights]
        self.weight_angles = Angles(trace.graph, on_weights, example, examples, on_inputs=False)
        self.input_angles = Angles(trace.graph, on_inputs, example, examples, on_inputs=True)
        self.blocks: list[program.Block] = []
        self.steps: list[tuple[str, Any]] = []
        self._plan(segments)
        self._kept: dict[tuple[torch.device, torch.dtype], dict[str, Any]] = {}

    def _plan(self, segments: list[list[program.Item]]) -> None:
        """The order of blocks, moves and phases, with every table in the order that the axes have by then."""
        canonical = [COMPLEX, *range(self.n_wires)]
        layout = canonical
        self.tables: list[np.ndarray] = []
        for i, segment in enumerate(segments):
            for block in program.blocks(segment, self.n_wires):
                rest = [axis for axis in layout if axis not in block.wires and axis != COMPLEX]
                wanted = [*rest, COMPLEX, *block.wires]
                if len(block.wires) == self.n_wires:
                    wanted = canonical
                self._move(layout, wanted)
                layout = wanted
                self.steps.append(("block", len(self.blocks)))
                self.blocks.append(block)
            if i < len(self.phases):
                table = self.phases[i].table(self.n_wires, self.input_angles.size)
                at = layout.index(COMPLEX)
                axes = [axis for axis in layout if axis != COMPLEX]
                table = table.reshape(-1, *[2] * self.n_wires).transpose(0, *(1 + axis for axis in axes))
                self.steps.append(("phases", (len(self.tables), 2**at)))
                self.tables.append(table.reshape(len(table), -1))
        self._move(layout, canonical)

    def _move(self, layout: list[int], wanted: list[int]) -> None:
        if layout == wanted:
            return
        runs: list[list[int]] = []  # axes that stay neighbours move as one: few dimensions, few strides
        for axis in wanted:
            if runs and layout.index(axis) == layout.index(runs[-1][-1]) + 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        there = sorted(runs, key=lambda run: layout.index(run[0]))
        shape = tuple(2 ** len(run) for run in there)
        self.steps.append(("move", Move(shape, tuple(1 + there.index(run) for run in runs))))

    # --- running ----------------------------------------------------------------------------------

    def __call__(self, inputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Measured values, shaped as `TorchLayer` shapes them for lists.

        Args:
            inputs: Of shape (batch, n_features), or (n_features,).
            weights: In the order of the trace; the same dtype and device as `inputs`.
        """
        single = inputs.ndim == 1
        kept = self._constants(inputs.device, inputs.dtype)
        matrices = self._matrices(weights, kept)
        at_once = max(
            1, int(CHUNK_BYTES // (2**self.n_wires * 2 * inputs.element_size() * (1 + len(self.steps))))
        )
        if single or len(inputs) <= at_once:
            values = self._values(inputs, matrices, weights, kept)
        else:  # each part is computed again when its gradient is asked for, so that only one is in memory
            values = torch.cat(
                [
                    checkpoint(self._values, part, matrices, weights, kept, use_reentrant=False)
                    for part in inputs.split(at_once)
                ]
            )
        return values[0] if single else values

    def _values(
        self, inputs: Tensor, matrices: list[Tensor], weights: Sequence[Tensor], kept: dict[str, Any]
    ) -> Tensor:
        values = self._read(self._evolve(inputs, weights, matrices, kept), kept)
        if inputs.ndim == 2 and len(values) == 1 != len(inputs):
            values = values.expand(len(inputs), *values.shape[1:])  # nothing depends on the inputs
        return values

    def _matrices(self, weights: Sequence[Tensor], kept: dict[str, Any]) -> list[Tensor]:
        """One real matrix per block, built for all blocks of a size at once."""
        matrices: list[Any] = [None] * len(self.blocks)
        if self.weight_angles.size:
            angles = self._weight_angles(weights, kept)
            for group in kept["groups"]:
                turned = angles[group["index"]] * group["frequency"]  # (n_blocks, n_factors)
                cosine, sine = turned.cos()[..., None, None], turned.sin()[..., None, None]
                factors = torch.addcmul(
                    torch.addcmul(group["fixed"], cosine, group["cosine"]), sine, group["sine"]
                )
                while (
                    factors.shape[1] > 1
                ):  # a tree of products: (n_blocks, n, d, d) -> (n_blocks, n / 2, d, d)
                    factors = factors[:, 0::2] @ factors[:, 1::2]
                for i, block in enumerate(group["blocks"]):
                    matrices[block] = factors[i, 0]
        for block, matrix in kept["constant"].items():
            matrices[block] = matrix
        return matrices

    def _weight_angles(self, weights: Sequence[Tensor], kept: dict[str, Any]) -> Tensor:
        if not self.weight_angles.affine:
            dummy = torch.zeros(2, kept["n_features"], dtype=weights[0].dtype, device=weights[0].device)
            dummy = dummy if self.weight_angles.batched else dummy[0]
            return self.weight_angles.by_graph(dummy, weights).to(kept["dtype"])
        flat = torch.cat([weight.reshape(-1) for weight in weights])
        if "weight_index" in kept:
            return flat[kept["weight_index"]]
        return flat @ kept["weight_matrix"] + kept["weight_offset"]

    def _evolve(
        self, inputs: Tensor, weights: Sequence[Tensor], matrices: list[Tensor], kept: dict[str, Any]
    ) -> Tensor:
        """The final state as rows (re, im): of shape (batch, 2 * 2**n_wires), or (1, ...) without phases."""
        size = 2 * 2**self.n_wires
        state = kept["start"]
        rows = inputs if inputs.ndim == 2 else inputs.unsqueeze(0)
        angles = None
        if self.input_angles.size and not self.input_angles.affine:
            angles = self.input_angles.by_graph(inputs, weights).to(kept["dtype"])
        for kind, what in self.steps:
            if kind == "block":
                matrix = matrices[what]
                state = (state.reshape(-1, len(matrix)) @ matrix).reshape(-1, size)
            elif kind == "move":
                state = state.reshape(-1, *what.shape).permute(0, *what.order).reshape(-1, size)
            else:
                number, outer = what
                if angles is not None:
                    turned = angles @ kept["tables"][number]
                else:
                    turned = torch.addmm(kept["offsets"][number], rows, kept["folded"][number])
                cosine, sine = (part.reshape(len(turned), outer, -1) for part in (turned.cos(), turned.sin()))
                re, im = state.reshape(len(state), outer, 2, -1).unbind(2)
                state = torch.stack([re * cosine + im * sine, im * cosine - re * sine], dim=2)
                state = state.reshape(-1, size)
        return state

    def _read(self, state: Tensor, kept: dict[str, Any]) -> Tensor:
        half = 2**self.n_wires
        if self.readout.shapes[0][0] == "state":
            return torch.complex(state[:, :half], state[:, half:])
        values = state.new_zeros(())
        for flip, (real, imag) in kept["flips"].items():
            re, im = state[:, :half], state[:, half:]
            if flip == 0:
                values = values + (re * re + im * im) @ real
                continue
            other = state[:, kept["partners"][flip]]
            other_re, other_im = other[:, :half], other[:, half:]
            values = values + (other_re * re + other_im * im) @ real
            values = values - (other_re * im - other_im * re) @ imag
        parts = []
        for kind, first, count in self.readout.shapes:
            part = values[:, first : first + count]
            parts.append(part[:, 1:] - part[:, :1] ** 2 if kind == "var" else part)
        kind = self.readout.shapes[0][0]
        if not self.trace.as_list:
            return parts[0] if kind == "probs" else parts[0][:, 0]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    # --- constants --------------------------------------------------------------------------------

    def _constants(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Everything that no input and no weight changes, made once per device and dtype."""
        if (device, dtype) not in self._kept:
            with torch.inference_mode(False), torch.no_grad():  # they outlive the caller's mode
                self._kept[device, dtype] = self._make_constants(device, dtype)
        return self._kept[device, dtype]

    def _make_constants(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        def put(array: Any) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(dtype).to(device)  # MPS has no float64

        half = 2**self.n_wires
        start = np.zeros((1, 2 * half))
        start[0, 0] = 1
        kept: dict[str, Any] = {"start": put(start), "dtype": dtype}
        kept["constant"] = {i: put(block.fixed[0]) for i, block in enumerate(self.blocks) if not block.angles}
        kept["groups"] = [self._group(size, put, device) for size in self._sizes()]
        kept["tables"] = [put(table) for table in self.tables]
        inputs, weights = self.input_angles, self.weight_angles
        if inputs.affine:
            matrix, offset = inputs.matrix, inputs.offset
            assert matrix is not None and offset is not None
            kept["folded"] = [put(matrix @ table) for table in self.tables]
            kept["offsets"] = [put((offset @ table)[None]) for table in self.tables]
        if weights.index is not None:
            kept["weight_index"] = torch.as_tensor(weights.index).to(device)
        elif weights.affine:
            kept["weight_matrix"], kept["weight_offset"] = put(weights.matrix), put(weights.offset)
        kept["n_features"] = self.n_features
        kept["flips"] = {
            flip: (put(np.real(table)), put(np.imag(table))) for flip, table in self.readout.flips.items()
        }
        states = np.arange(half)
        kept["partners"] = {
            flip: torch.as_tensor(np.concatenate([states ^ flip, half + (states ^ flip)])).to(device)
            for flip in self.readout.flips
        }
        return kept

    def _sizes(self) -> list[int]:
        return sorted({len(block.wires) for block in self.blocks if block.angles})

    def _group(self, n_wires: int, put: Any, device: torch.device) -> dict[str, Any]:
        """The blocks on `n_wires` wires, padded with identities to a common power of two of factors."""
        members = [i for i, block in enumerate(self.blocks) if block.angles and len(block.wires) == n_wires]
        longest = 2 ** math.ceil(math.log2(max(len(self.blocks[i].angles) for i in members)))
        size = 2 * 2**n_wires
        fixed = np.broadcast_to(np.eye(size), (len(members), longest, size, size)).copy()
        cosine, sine = np.zeros_like(fixed), np.zeros_like(fixed)
        index = np.zeros((len(members), longest), dtype=np.int64)
        frequency = np.zeros((len(members), longest))
        for row, i in enumerate(members):
            block, n = self.blocks[i], len(self.blocks[i].angles)
            fixed[row, :n], cosine[row, :n], sine[row, :n] = block.fixed, block.cosine, block.sine
            index[row, :n], frequency[row, :n] = block.angles, block.frequencies
        return {
            "blocks": members,
            "fixed": put(fixed),
            "cosine": put(cosine),
            "sine": put(sine),
            "index": torch.as_tensor(index).to(device),
            "frequency": put(frequency),
        }
