"""A torch.profiler trace of a few updates, and the costliest operations in words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qnnkit import measure, workspace
from qnnkit.checkpoint import own_generators
from qnnkit.data import Splits
from qnnkit.settings import Settings
from qnnkit.survey import net, samples

WORDS = {
    "circuits, as one fused program": ("_Run", "_RunBackward"),
    "matrix products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "matmul", "linear", "einsum", "dot", "mv"),
    "convolutions": (
        "conv2d", "convolution", "_convolution", "mkldnn_convolution", "convolution_backward",
        "cudnn_convolution", "thnn_conv2d", "_slow_conv2d_forward", "_slow_conv2d_backward",
    ),
    "copies and changes of type": ("copy_", "_to_copy", "to", "clone", "contiguous"),
    "new memory": ("empty", "empty_like", "empty_strided", "resize_", "zeros", "zeros_like", "new_empty"),
    "setting to a value": ("zero_", "fill_", "ones", "full", "scalar_tensor"),
    "sums": ("sum", "add_", "add", "mean", "cumsum", "sub", "rsub", "sub_"),
    "products of elements": ("mul", "mul_", "div", "div_", "neg", "addcmul", "addcdiv", "addcdiv_"),
    "sines and cosines": ("sin", "cos", "polar", "sin_", "cos_"),
    "gathering and scattering": (
        "index", "index_select", "index_put_", "_index_put_impl_", "index_add_", "gather", "scatter_",
        "embedding", "embedding_dense_backward",
    ),
    "joining tensors": ("cat", "stack", "hstack"),
    "activation functions": (
        "relu", "relu_", "threshold_backward", "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid",
        "sigmoid_backward", "tanh", "tanh_backward", "hardsigmoid", "clamp_min", "clamp_min_", "hardtanh",
    ),
    "normalisation": (
        "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "native_layer_norm",
        "native_layer_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward", "native_group_norm",
    ),
    "pooling": (
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    ),
    "softmax and loss": (
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data",
        "nll_loss_forward", "nll_loss_backward", "cross_entropy_loss",
    ),
    "attention": (
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    ),
    "dropout": ("dropout", "native_dropout", "native_dropout_backward", "bernoulli_"),
    "patches of images": ("im2col", "col2im", "unfold", "fold"),
    "rearranging, without a copy": (
        "view", "reshape", "transpose", "permute", "as_strided", "t", "expand", "select", "slice",
        "unsqueeze", "squeeze", "narrow", "split", "detach",
    ),
    "steps of the optimizer": ("_foreach_add_", "_foreach_mul_", "_foreach_addcdiv_", "_fused_adam_"),
    "waiting for the device to take work": ("cudaLaunchKernel", "cudaDeviceSynchronize", "cudaMemcpyAsync"),
}  # fmt: skip
"""What operations do -> their names in torch, without `aten::`."""
KNOWN = {name: words for words, names in WORDS.items() for name in names}
STEPS, WARMUP, COSTLIEST = 10, 3, 10


@dataclass(frozen=True)
class Operation:
    """One kind of operation, over all profiled updates."""

    name: str
    """As torch calls it, such as "aten::addmm"."""
    words: str
    share: float
    """Of the time of all operations, without what they call themselves."""
    calls: int
    """In one update."""

    def __str__(self) -> str:
        calls = f"{self.calls} call{'s' * (self.calls != 1)} an update"
        return f"{self.words} ({self.name}): {100 * self.share:.0f} % of the time, {calls}"


def profile(
    config: Settings, splits: Splits, trace: Path, device: torch.device | str = "cpu"
) -> list[Operation]:
    """Traces a few updates of the recipe's net.

    Args:
        config: The recipe.
        splits: Its data.
        trace: Where the trace is written, for `chrome://tracing` or https://ui.perfetto.dev; zipped where its
            name ends in `.gz`.
        device: Where to compute.

    Returns:
        The ten costliest operations, the costliest first.

    Raises:
        OSError: The trace cannot be written.
    """
    from torch import profiler

    device = torch.device(device)
    kinds = [profiler.ProfilerActivity.CPU]
    kinds += [profiler.ProfilerActivity.CUDA] * (device.type == "cuda")
    sample = samples.of(splits, config.batch_size)
    with own_generators(), measure.threads(config.threads):
        stepper, batch = net.stepping(config, config, sample, device)
        for _ in range(WARMUP):
            stepper(batch)
        with profiler.profile(activities=kinds) as recorded:
            for _ in range(STEPS):
                stepper(batch)
            measure.synchronize(device)
    workspace.make_folder(trace.parent)
    draft = trace.with_name(f".{os.getpid()}.{trace.name}")  # whole or not at all
    recorded.export_chrome_trace(str(draft))
    draft.replace(trace)
    return costliest(recorded.key_averages(), STEPS)


def costliest(events: Iterable[Any], steps: int) -> list[Operation]:
    """The ten operations that take most of the time by themselves.

    Args:
        events: `torch.profiler`'s averages by operation.
        steps: Updates that they are of.
    """
    rows = [row for row in events if str(row.device_type).endswith(".CPU")]  # not kernels again
    on_device = sum(row.self_device_time_total for row in rows) > 0
    taken = {
        row.key: float(row.self_device_time_total if on_device else row.self_cpu_time_total) for row in rows
    }
    whole = sum(taken.values()) or 1.0
    rows = sorted(rows, key=lambda row: taken[row.key], reverse=True)[:COSTLIEST]
    return [
        Operation(row.key, in_words(row.key), taken[row.key] / whole, round(row.count / steps))
        for row in rows
        if taken[row.key] > 0
    ]


def in_words(name: str) -> str:
    """What an operation does; its own name where nobody has put it into words.

    Example:
        >>> in_words("aten::addmm"), in_words("MyOwn")
        ('matrix products', 'MyOwn')
    """
    if name.startswith("Optimizer."):
        return "steps of the optimizer"
    return KNOWN.get(name.removeprefix("aten::"), name.removeprefix("aten::"))
