"""What there is to choose from: devices, thread counts and sizes of batch, the simplest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qnnkit import checks, device
from qnnkit.device import machine
from qnnkit.settings import Settings

SMALLEST, LARGEST = 16, 1024
"""Of the batches that are tried."""
UPDATES = 20
"""An epoch has at least so many: with fewer, no optimizer gets far."""


@dataclass(frozen=True)
class Candidate:
    """One way to train a net."""

    device: str
    """A torch device."""
    threads: int | None
    """CPU threads; None leaves torch's own number."""
    batch_size: int

    @property
    def place(self) -> str:
        """Where it computes, in words.

        Example:
            >>> Candidate("cpu", 1, 64).place, Candidate("mps", None, 64).place
            ('cpu on 1 thread', 'mps')
        """
        return f"{self.device} on {self.how_many}" if self.threads else self.device

    @property
    def how_many(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads != 1)}"

    @property
    def name(self) -> str:
        """By which its time is kept."""
        return f"{self.place}, batch {self.batch_size}"


def candidates(
    device: str, threads: int | str | None, config: Settings, n_samples: int | None
) -> list[Candidate]:
    """Every way to train that the settings leave open: the CPU first, then few threads, small batches.

    An accelerator is tried with torch's own number of threads, or the one that is asked for: they hardly
    matter there.

    Args:
        device: A torch device, or "auto".
        threads: A number, "auto", or None for torch's own.
        config: Its `batch_size` may be "auto".
        n_samples: In an epoch; None does not bound the size of batches.
    """
    batches = sizes(n_samples) if config.batch_size == "auto" else [config.batch_size]
    found = []
    for place in devices(device, config.precision):
        given = threads
        if threads == "auto":
            given = thread_counts() if place == "cpu" else [None]
        for number in given if isinstance(given, list) else [given]:
            found += [Candidate(place, number, size) for size in batches]  # pyright: ignore[reportArgumentType]
    return found


def devices(requested: str, precision: str = "float32") -> list[str]:
    """The torch devices to choose from; of several CUDA devices the first, as training takes no other.

    Raises:
        ValueError: The name is unknown, that device cannot compute here, or none has this precision.
    """
    if requested == "auto":
        found = [str(one) for one in device.usable_devices() if one.index in (None, 0)]
    else:
        found = [str(device.choose(requested))]
    if precision == "float16":  # the CPU has no such arithmetic worth the name
        found = [one for one in found if one != "cpu"]
        if not found:
            step = "Use bfloat16 or float32."
            raise ValueError(checks.message("precision", "suit the device", "float16 on cpu", step))
    return found


def thread_counts() -> list[int]:
    """1, half and all of the physical cores that this process may use; never more than torch would take."""
    import psutil

    physical = psutil.cpu_count(logical=False) or machine.cores()
    most = max(1, min(physical, machine.cores(), torch.get_num_threads()))
    return sorted({1, max(1, most // 2), most})


def sizes(n_samples: int | None) -> list[int]:
    """Powers of two that leave an epoch enough updates; the smallest in any case.

    Where the last batch of an epoch would be of one sample, which normalisation over a batch may not take,
    a size is left out. Where all are like that, their neighbours stand in.

    Example:
        >>> sizes(1078), sizes(None)[-1]
        ([16, 32], 1024)
        >>> sizes(33)
        [17]
    """
    found = [SMALLEST]
    while found[-1] < LARGEST:
        if n_samples is not None and found[-1] * 2 * UPDATES > n_samples:
            break
        found.append(found[-1] * 2)
    if n_samples is None:
        return found
    whole = [size for size in found if n_samples % size != 1]
    near = [[one for one in (size + 1, size - 1) if n_samples % one != 1] for size in found]
    return whole or [ones[0] for ones in near if ones] or found


def here() -> dict[str, Any]:
    """The machine, as far as a decision depends on it: on another one it is taken anew."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": machine.processor(),
        "cores": machine.cores(),
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "torch": torch.__version__,
    }
