"""The form of a machine's file: what stands in it, in which units.

Every time is in seconds, every size in bytes, every throughput per second; the names say which.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic brings it, and asks for it below Python 3.12

FORMAT = 1
"""Of the file; another number when the same name is to mean something else."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Times(TypedDict):
    """Of equal calls, in seconds; `measure.Spread` as plain values."""

    least: Positive
    median: Positive
    most: Positive
    rounds: Count


class LeftOut(TypedDict):
    """In place of a measurement that was not taken."""

    why: str


class Bandwidth(TypedDict):
    """`a + 2 b` into a third array: what is read and written, by the time that it takes."""

    bytes_per_second: Positive
    array_bytes: Count
    seconds: Times


class Products(TypedDict):
    """Products of two square matrices: 2 size^3 operations."""

    flops_per_second: Positive
    size: Count
    seconds: Times


class SmallProduct(TypedDict):
    """One of a hundred products of matrices of this size."""

    size: Count
    seconds: Times


class Way(TypedDict):
    """Between host memory and a device, in one direction."""

    bytes_per_second: Positive
    """Of a large array."""
    seconds: Times
    """Of a single number."""


class Device(TypedDict):
    """What torch reaches on one device."""

    device: str
    """"cpu", "cuda:0", "mps"."""
    name: str
    memory_bytes: Count
    """Of a GPU its own; of the CPU and of MPS, which share it, the machine's."""
    threads: NotRequired[Count]
    bandwidth: Bandwidth | LeftOut
    matmul: dict[Literal["float32", "bfloat16", "float16"], Products | LeftOut]
    small_products: list[SmallProduct]
    operation: Times
    """One small elementwise operation: what it takes to launch it."""
    to_device: NotRequired[Way]
    from_device: NotRequired[Way]


class Platform(TypedDict):
    """What the machine reaches, whatever it is used for."""

    memory_total_bytes: Count
    memory_available_bytes: Count
    devices: list[Device]
    sentences: list[str]


class Cell(TypedDict):
    """A batch of circuits, forward and backward, on one simulator."""

    backend: str
    device: str
    n_qubits: Count
    batch: Count
    seconds: NotRequired[Times]
    """Of the whole batch; absent where it was not measured."""
    circuits_timed: NotRequired[Count]
    """As many as the batch; fewer where they run one by one and the time is scaled up."""
    why: NotRequired[str]


class CircuitThreads(TypedDict):
    """Small circuits, forward and backward, in a process of its own with this number of threads."""

    backend: str
    threads: Count
    n_qubits: Count
    batch: Count
    seconds: NotRequired[Times]
    why: NotRequired[str]


class Circuits(TypedDict):
    """What simulators take, over qubits and batch."""

    circuit: str
    n_layers: Count
    cells: list[Cell]
    absent: dict[str, str]
    """Simulator -> why it does not run here."""
    threads: list[CircuitThreads]
    sentences: list[str]


class NetThreads(TypedDict):
    """An update of the net on the CPU with this number of threads."""

    threads: Count
    seconds: Times


class NetTimes(TypedDict):
    """A net on one device in one precision."""

    device: str
    precision: str
    threads: NotRequired[Count]
    forward: NotRequired[Times]
    backward: NotRequired[Times]
    optimizer: NotRequired[Times]
    update: NotRequired[Times]
    """A whole one, of as many passes as its batch has pieces."""
    samples_per_second: NotRequired[Positive]
    tokens_per_second: NotRequired[Positive]
    """Of samples that are sequences of tokens."""
    seconds_per_epoch: NotRequired[Positive]
    """Of training, without loading, validation and writing."""
    peak_bytes: NotRequired[Count]
    """Of a process that does nothing else: its RAM, or what torch reserves of a GPU; without the dataset."""
    over_threads: NotRequired[list[NetThreads]]
    why: NotRequired[str]


class Net(TypedDict):
    """A recipe's own net."""

    recipe: str
    kind: NotRequired[Literal["images", "captions", "tokens"]]
    """Of its data; absent in files of before there were others than images."""
    digest: str
    """Hash of what the times depend on: files are compared where it is the same."""
    n_weights: NotRequired[Count]
    n_trained: NotRequired[Count]
    """Of the weights."""
    batch_size: Count
    micro_batch: NotRequired[Count | None]
    """Samples that are computed at once; absent or None are all."""
    n_samples: Count
    """Of an epoch."""
    data_bytes: Count
    """What the data take in RAM beside `peak_bytes`."""
    settings: list[NetTimes]
    sentences: list[str]


class Operation(TypedDict):
    """One kind of operation among the costliest of a net."""

    name: str
    """As torch calls it."""
    words: str
    share: Annotated[float, Field(ge=0, le=1)]
    """Of the time of all."""
    calls: Annotated[int, Field(ge=0)]
    """In one update."""


class Profile(TypedDict):
    """A trace by torch.profiler."""

    device: str
    recipe: str
    trace: str
    """Name of its file, beside this one or in the run's folder."""
    operations: list[Operation]


class Sections(TypedDict):
    platform: Platform
    circuits: NotRequired[Circuits]
    net: NotRequired[Net]
    profile: NotRequired[Profile]


class Machine(TypedDict):
    """The kind of machine; nothing in it names a person or a computer."""

    name: str
    """Such as "AMD EPYC, 2 cores" or "Tesla T4, 2 cores, Colab"."""
    system: str
    processor: str
    cores: Count
    memory_bytes: Count
    accelerators: list[str]
    colab: bool
    versions: dict[str, str]


class Busy(TypedDict):
    """Cores that other programs used, before, between and after the sections."""

    samples: list[NotNegative]
    most: NotNegative
    sentence: str | None


class Survey(TypedDict):
    """One machine's file."""

    format: Literal[1]
    qnnkit: str
    machine: Machine
    measured_at: str
    """UTC, ISO 8601."""
    seconds: Positive
    """That the survey took."""
    busy: Busy
    price_per_hour: NotNegative | None
    """Of the machine, in any currency; 0 for one that costs nothing, None where nobody said."""
    unstable: list[str]
    """Measurements of which the slowest round took over twice the median."""
    sections: Sections
