"""PennyLane's devices, each tried on one circuit whose value and gradient are known."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from importlib import metadata

from qnnkit.device import machine

SIMULATORS = ("default.qubit", "lightning.qubit", "lightning.gpu")
APART = ("lightning.gpu",)  # a broken GPU library can kill its process, so this one gets a process of its own
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
    version: str | None = None
    seconds: float | None = None  # making the device, one circuit and its gradient; packages already loaded
    apart: bool = False  # tried in a process of its own
    error: str | None = None
    why: str | None = None
    install: str | None = None


def probe(name: str, *, apart: bool | None = None, timeout: float = 120.0) -> Simulator:
    """Tries <Z> after RX(t) and its gradient, cos t and -sin t, on the PennyLane device `name`.

    Args:
        name: As `pennylane.device` takes it.
        apart: Whether to try it in a process of its own, which a crash does not outlive; None does so for
            those of APART.
        timeout: Seconds after which that process is stopped.

    Returns:
        The device's state; a device that loads and then raises, crashes, hangs or errs in a number "fails".

    Example:
        >>> probe("default.qubit").state
        'runs'
    """
    apart = name in APART if apart is None else apart
    entry = next((one for one in metadata.entry_points(group="pennylane.plugins") if one.name == name), None)
    if entry is None:
        return Simulator(name, "missing", machine.version(PACKAGES.get(name, name)))
    version = entry.dist.version if entry.dist else None
    tried = _try_apart(name, timeout) if apart else _try_here(name)
    return replace(tried, version=version, apart=apart)


def _try_here(name: str) -> Simulator:
    """The outcome of the first circuit on the device `name`, in this process."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            seconds, wrong = _first_circuit(name)
        except Exception as error:  # plugins raise what they like
            # Lightning warns of the library that did not load, then raises something vaguer.
            said = [str(one.message).splitlines()[0] for one in heard if one.category is UserWarning]
            return Simulator(
                name, "fails", error="; ".join([machine.first_line(error), *dict.fromkeys(said)])
            )
    return Simulator(name, "fails" if wrong else "runs", seconds=seconds, error=wrong)


def _first_circuit(name: str) -> tuple[float, str | None]:
    """Seconds that the first circuit and its gradient took, and which number is wrong, if one is."""
    # First the device's own package: if that kills the process, nothing else was loaded in vain.
    next(one for one in metadata.entry_points(group="pennylane.plugins") if one.name == name).load()
    import numpy as np
    import pennylane as qp
    import torch

    methods = {"default.qubit": "backprop", "lightning.qubit": "adjoint", "lightning.gpu": "adjoint"}
    # Devices draw their seed from NumPy's global generator, which is left as found.
    random_state = np.random.get_state()  # noqa: NPY002
    try:
        start = time.perf_counter()

        @qp.qnode(qp.device(name, wires=1), interface="torch", diff_method=methods.get(name, "best"))
        def circuit(angle):
            qp.RX(angle, wires=0)
            return qp.expval(qp.Z(0))

        angle = torch.tensor(ANGLE, dtype=torch.float64, requires_grad=True)
        value = circuit(angle)
        (gradient,) = torch.autograd.grad(value, angle)
        seconds = time.perf_counter() - start
    finally:
        np.random.set_state(random_state)  # noqa: NPY002
    for what, got, expected in (
        ("<Z> after RX", value.item(), math.cos(ANGLE)),
        ("its gradient", gradient.item(), -math.sin(ANGLE)),
    ):
        if not abs(got - expected) < TOLERANCE:
            return seconds, f"{what} at {ANGLE} came out as {got:.6g} instead of {expected:.6g}"
    return seconds, None


def _try_apart(name: str, timeout: float) -> Simulator:
    """The outcome of the first circuit on the device `name`, in a process of its own."""
    code = "import sys; from qnnkit.device import simulators; simulators.tell(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, name],
            env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Simulator(name, "fails", error=f"its first circuit gave no answer within {timeout:g} s")
    told = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if told:
        return Simulator(**json.loads(told[-1]))
    # Negative codes are signals; on Windows a crash is a large positive code.
    died = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    last = done.stderr.strip().splitlines()[-1:]
    return Simulator(
        name, "fails", error=": ".join([f"its first circuit killed its process ({died})", *last])
    )


def tell(name: str) -> None:
    """Prints the outcome of the first circuit on the device `name` as a line of JSON."""
    print(json.dumps(asdict(_try_here(name))), flush=True)
