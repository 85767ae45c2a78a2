"""PennyLane's devices: each is tested with one circuit, with the reason if it does not run."""

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
TOLERANCE = 1e-6  # float64 is accurate to 1e-15, float32 to 1e-7


@dataclass(frozen=True)
class Simulator:
    """A PennyLane device, and whether a first circuit gave the correct value and gradient."""

    name: str
    state: str  # "runs" | "fails" | "missing"
    seconds: float | None = None  # of device, circuit and gradient, with packages already loaded
    error: str | None = None  # why it does not run


def probe(name: str, timeout: float = 120.0) -> Simulator:
    """Tests the PennyLane device `name` with <Z> after RX(t) and its gradient, cos t and -sin t.

    The result has `name`, `state` ("runs", "fails" or "missing"), the `seconds` of circuit and gradient, and
    `error`, why it does not run. A device "fails" if it loads but then raises an error, crashes, hangs or
    gives a wrong number. A broken GPU library can kill its process, so lightning.gpu is tested in another one
    for at most `timeout` seconds.
    """
    if not metadata.entry_points(group="pennylane.plugins", name=name):
        return Simulator(name, "missing", error="not installed")
    return try_apart(name, timeout) if name == "lightning.gpu" else try_here(name)


def try_here(name: str) -> Simulator:
    """Runs the first circuit on the device `name` in this process."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seconds, wrong = _first_circuit(name)
        except Exception as error:  # plugins raise errors of any type
            # Lightning warns about the library that did not load, then raises a vaguer error.
            texts = [str(one.message).splitlines()[0] for one in caught if one.category is UserWarning]
            return Simulator(name, "fails", None, "; ".join([words.error_line(error), *texts]))
    return Simulator(name, "fails" if wrong else "runs", seconds, wrong)


def try_apart(name: str, timeout: float) -> Simulator:
    """Runs the first circuit on the device `name` in another process, which a crash may kill."""
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
    """Seconds of the first circuit and its gradient, and a sentence if a number is wrong."""
    (entry,) = metadata.entry_points(group="pennylane.plugins", name=name)
    entry.load()  # raises the reason if a plugin is broken; qp.device only says that it is unknown

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
    computed, expected = (value.item(), gradient.item()), (math.cos(ANGLE), -math.sin(ANGLE))
    if all(abs(one - other) < TOLERANCE for one, other in zip(computed, expected, strict=True)):
        return seconds, None
    wrong = "<Z> after RX({}) and its gradient are {:.6g} and {:.6g} instead of {:.6g} and {:.6g}"
    return seconds, wrong.format(ANGLE, *computed, *expected)


def remedy(tried: Simulator, gpu: str | None) -> str | None:
    """Why a device does not run and what to type, on a machine with this GPU; None if it runs."""
    if tried.state == "runs":
        return None
    if tried.name != "lightning.gpu":
        return f"Type: pip install --upgrade {PACKAGES.get(tried.name, tried.name)}"
    if platform.system() != "Linux" or not gpu:
        return f"It needs Linux with an NVIDIA GPU; this is {platform.system()} with {gpu or 'no GPU'}."
    return (
        "It needs compute capability 7.0, a driver for CUDA 12, and CUDA 12 libraries even if torch has "
        "CUDA 13. Type: pip install 'qnnkit[gpu]'; see https://pennylane.ai/install"
    )
