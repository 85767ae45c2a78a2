"""Memory that runs out: how it is noticed, and the sentences that tell of it."""

from __future__ import annotations

import gc

import torch
from torch import nn

from qnnkit.settings import Settings

SIGNS = (
    "out of memory",  # CUDA, ROCm, and MPS: "MPS backend out of memory"
    "can't allocate memory",  # DefaultCPUAllocator, on Linux and macOS
    "not enough memory",  # DefaultCPUAllocator, on Windows
    "Cannot allocate memory",  # the system, as where a checkpoint is mapped
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "bad_alloc",
)
"""What a RuntimeError says where memory ran out."""


class OutOfMemory(MemoryError):
    """Memory ran out while a net was trained; told are where, and the next remedy."""


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def release(device: torch.device) -> None:
    """Gives back what nothing holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def in_use(device: torch.device) -> int:
    """Bytes that this process holds now in the memory that `device` computes in."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    import psutil

    return psutil.Process().memory_info().rss


def shrunk(where: str, n: int | None, micro_batch: int, model: nn.Module) -> str:
    """That batches are computed in smaller pieces from here on."""
    told = (
        f"Memory ran out at {where}: from here on at most {micro_batch} of the {n} samples of a batch are "
        "computed at once, one piece after the other, and their gradients added up. The update, the order of "
        "the data and the schedule stay. Training goes on from its last checkpoint."
    )
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        told += " Batch normalisation now sees the pieces."
    return told


def stopped(where: str, n: int | None, config: Settings, device: torch.device, processes: int) -> str:
    """That a training stops because memory ran out, and what to do next.

    Args:
        where: Epoch and batch.
        n: Samples of the batch; 0 outside of one, None of one that cannot be split.
        config: What has been tried already is not proposed.
        device: What it ran out on.
        processes: How many train together.
    """
    told = f"Memory ran out at {where}{f', {n} samples' if n else ''}: {in_use(device) / 1e9:.2f} GB are in "
    told += f"use by this process on {device}. "
    remedies, at_once = [], n and min(n, config.micro_batch or n)
    if n is None:
        told += "This batch cannot be split, which takes tensors of one length and nothing else. "
    elif at_once == 1:
        told += "A single sample does not fit. "
    elif at_once and config.on_oom != "shrink":
        remedies.append("--set on_oom=shrink" if processes == 1 else f"--set micro_batch={at_once // 2}")
    if n != 0 and not config.gradient_checkpointing:
        remedies.append("--set gradient_checkpointing=true")
    how = f"with {' or '.join(remedies)}" if remedies else "where more is free"
    told += f"What was saved is whole, and the same command goes on from it {how}. In another run_dir: "
    return f"{told}a smaller net or batch_size, smaller images or precision=bfloat16."
