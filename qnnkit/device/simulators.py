"""PennyLane's devices: each tried on one circuit, and for one that does not run why."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
import warnings
from dataclasses import dataclass
from importlib import metadata

from qnnkit import words
from qnnkit.device import machine

PACKAGES = {
    "default.qubit": "pennylane",
    "lightning.qubit": "pennylane-lightning",
    "lightning.gpu": "pennylane-lightning-gpu",
}
ANGLE = 0.7  # radians
TOLERANCE = 1e-6  # float64 comes within 1e-15, float32 within 1e-7


@dataclass(frozen=True)
class Simulator:
    """One PennyLane device, and whether its first circuit gave the right value and gradient."""

    name: str
    state: str  # "runs" | "fails" | "missing"
    seconds: float | None = None  # making the device, one circuit and its gradient; packages already loaded
    error: str | None = None  # why it does not run


def probe(name: str, timeout: float = 120.0) -> Simulator:
    """Tries <Z> after RX(t) and its gradient, cos t and -sin t, on the PennyLane device `name`.

    A device that loads and then raises, crashes, hangs or errs in a number "fails". As a broken GPU library
    can kill its process, lightning.gpu is tried in one of its own, stopped after `timeout` seconds.
    """
    if not metadata.entry_points(group="pennylane.plugins", name=name):
        return Simulator(name, "missing", error="not installed")
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
    if lines := [line for line in done.stdout.splitlines() if line.startswith(b'{"name"')]:
        return Simulator(**json.loads(lines[-1]))
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
    computed, right = (value.item(), gradient.item()), (math.cos(ANGLE), -math.sin(ANGLE))
    if all(abs(one - other) < TOLERANCE for one, other in zip(computed, right, strict=True)):
        return seconds, None
    wrong = "<Z> after RX at {} and its gradient came out as {:.6g} and {:.6g} instead of {:.6g} and {:.6g}"
    return seconds, wrong.format(ANGLE, *computed, *right)


def remedy(tried: Simulator, gpu: str | None) -> str | None:
    """Why a device does not run and what to type, on a machine with this GPU; None where it runs."""
    if tried.state == "runs":
        return None
    if tried.name != "lightning.gpu":
        return f"Type: pip install --upgrade {PACKAGES.get(tried.name, tried.name)}"
    if platform.system() != "Linux" or not gpu:
        return f"It needs Linux with an NVIDIA GPU: this is {platform.system()}, with {gpu or 'none'}."
    return (
        "It needs compute capability 7.0, a driver for CUDA 12, and its CUDA 12 libraries also where torch "
        "has CUDA 13. Type: pip install 'qnnkit[gpu]'; see https://pennylane.ai/install"
    )
