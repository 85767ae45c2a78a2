"""Out-of-memory errors: how to recognise them, and a message that names the next remedy."""

from __future__ import annotations

import re

import torch

from qnnkit.settings import Settings

SIGNS = re.compile("out of memory|allocate memory|enough memory|ALLOC_FAILED|bad_alloc")
"""Words in a RuntimeError of CUDA, MPS, the CPU's allocator or the system that mean out of memory."""


class OutOfMemory(MemoryError):
    """A MemoryError in training; the message says where memory ran out, and names the next remedy."""


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    refused = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return refused or (isinstance(error, RuntimeError) and SIGNS.search(str(error)) is not None)


def out_of_memory(where: str, what: str, config: Settings, n: int | None = None) -> OutOfMemory:
    """The error that ends a training when memory runs out.

    Args:
        where: Epoch and batch.
        what: First line of the original error.
        config: Settings; remedies that are already set are not named.
        n: Number of samples computed at once, if fewer would need less memory.
    """
    remedies = [f"--set micro_batch={n // 2}"] if n and n > 1 else []
    remedies += [] if config.gradient_checkpointing else ["--set gradient_checkpointing=true"]
    return OutOfMemory(
        f"Memory ran out at {where} ({what}). The same command resumes from the last checkpoint: run it "
        f"{'with ' + ' or '.join(remedies) if remedies else 'where more memory is free'}. "
        "In another run_dir, a smaller net or batch_size, smaller images or precision=bfloat16 need less."
    )
