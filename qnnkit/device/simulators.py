"""PennyLane's devices: each tried on one circuit, and for one that fails why, and what to type."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
import warnings
from dataclasses import dataclass, replace
from importlib import metadata

from qnnkit import words
from qnnkit.device import accelerators, machine
from qnnkit.device.accelerators import Accelerator

PACKAGES = {
    "default.qubit": "pennylane",
    "lightning.qubit": "pennylane-lightning",
    "lightning.gpu": "pennylane-lightning-gpu",
}
ANGLE = 0.7  # radians
TOLERANCE = 1e-6  # float64 comes within 1e-15, float32 within 1e-7

NEEDS = (
    "It needs compute capability 7.0, a driver for CUDA 12, and its CUDA 12 libraries also where torch has "
    "CUDA 13: https://pennylane.ai/install"
)


@dataclass(frozen=True)
class Simulator:
    """One PennyLane device, and whether its first circuit gave the right value and gradient."""

    name: str
    state: str  # "runs" | "fails" | "missing"
    seconds: float | None = None  # making the device, one circuit and its gradient; packages already loaded
    error: str | None = None
    why: str | None = None  # the reason, in one sentence, unless it runs
    install: str | None = None  # the command to type; None: no command helps


def tried() -> tuple[Simulator, ...]:
    """Each device of `PACKAGES`, tried; where it does not run, with the reason and the command."""
    gpu = accelerators.accelerators()[0]
    return tuple(explain(probe(name), gpu) for name in PACKAGES)


def probe(name: str, timeout: float = 120.0) -> Simulator:
    """Tries <Z> after RX(t) and its gradient, cos t and -sin t, on the PennyLane device `name`.

    A device that loads and then raises, crashes, hangs or errs in a number "fails". As a broken GPU library
    can kill its process, lightning.gpu is tried in one of its own, stopped after `timeout` seconds.
    """
    if not metadata.entry_points(group="pennylane.plugins", name=name):
        return Simulator(name, "missing")
    return try_apart(name, timeout) if name == "lightning.gpu" else try_here(name)


def try_here(name: str) -> Simulator:
    """The outcome of the first circuit on the device `name`, in this process."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            seconds, wrong = _first_circuit(name)
        except Exception as error:  # plugins raise what they like
            # Lightning warns of the library that did not load, then raises something vaguer.
            said = [str(one.message).splitlines()[0] for one in heard if one.category is UserWarning]
            return Simulator(name, "fails", None, "; ".join([words.error_line(error), *said]))
    return Simulator(name, "fails" if wrong else "runs", seconds, wrong)


def try_apart(name: str, timeout: float) -> Simulator:
    """The outcome of the first circuit on the device `name`, in a process that a crash may kill."""
    code = (
        "import dataclasses, json, sys; from qnnkit.device import simulators; "
        "print(json.dumps(dataclasses.asdict(simulators.try_here(sys.argv[1]))))"
    )
    try:
        done = machine.apart(code, name, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Simulator(name, "fails", None, f"its first circuit gave no answer within {timeout:g} s")
    if told := [line for line in done.stdout.splitlines() if line.startswith(b'{"name"')]:
        return Simulator(**json.loads(told[-1]))
    died, last = machine.ending(done)
    why = f"its first circuit killed its process ({died}){f': {last}' if last else ''}"
    return Simulator(name, "fails", None, why)


def _first_circuit(name: str) -> tuple[float, str | None]:
    """Seconds that the first circuit and its gradient took, and which number is wrong, if one is."""
    (entry,) = metadata.entry_points(group="pennylane.plugins", name=name)
    entry.load()  # a broken plugin says why here; qp.device only says that it is unknown

    import pennylane as qp
    import torch

    start = time.perf_counter()
    device = qp.device(name, wires=1, seed=0)  # without a seed it draws from NumPy's global generator

    @qp.qnode(device, interface="torch", diff_method="adjoint" if "lightning" in name else "best")
    def circuit(angle):
        qp.RX(angle, wires=0)
        return qp.expval(qp.Z(0))

    angle = torch.tensor(ANGLE, dtype=torch.float64, requires_grad=True)
    value = circuit(angle)
    (gradient,) = torch.autograd.grad(value, angle)
    seconds = time.perf_counter() - start
    for what, got, expected in (
        ("<Z> after RX", value.item(), math.cos(ANGLE)),
        ("its gradient", gradient.item(), -math.sin(ANGLE)),
    ):
        if not abs(got - expected) < TOLERANCE:
            return seconds, f"{what} at {ANGLE} came out as {got:.6g} instead of {expected:.6g}"
    return seconds, None


def explain(tried: Simulator, gpu: Accelerator) -> Simulator:
    """`tried` with the reason and the command, unless it runs, on a machine with this first GPU."""
    if tried.state == "runs":
        return tried
    package = PACKAGES[tried.name]
    why = "is not installed." if tried.state == "missing" else "is installed, yet its first circuit fails."
    why, install = f"{package} {why}", f"pip install --upgrade {package}"
    if tried.name == "lightning.gpu" and platform.system() != "Linux":
        why, install = f"lightning.gpu needs Linux with an NVIDIA GPU, and this is {platform.system()}.", None
    elif tried.name == "lightning.gpu" and not gpu.name:
        why, install = "No CUDA device: neither torch nor the driver lists an NVIDIA GPU here.", None
    elif tried.name == "lightning.gpu":
        why, install = f"{why} {NEEDS}", "pip install 'qnnkit[gpu]'"
    return replace(tried, why=why, install=install)
