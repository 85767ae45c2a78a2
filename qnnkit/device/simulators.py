"""PennyLane's devices: each tried on one circuit, and for one that fails why, and what to type."""

from __future__ import annotations

import json
import math
import platform
import re
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

# What the wheels of pennylane-lightning-gpu need. A driver made for CUDA 13 runs their CUDA 12 libraries too.
RELEASE = "0.45.0"
DRIVER = "525.60.13"
CAPABILITY = 7.0


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
    gpu, driver = accelerators.accelerators()[0], accelerators.driver()
    return tuple(explain(probe(name), gpu, driver) for name in PACKAGES)


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


def explain(tried: Simulator, gpu: Accelerator, driver: str | None) -> Simulator:
    """`tried` with the reason and the command, unless it runs, beside this GPU and NVIDIA driver."""
    import torch

    if tried.state == "runs":
        return tried
    package = PACKAGES[tried.name]
    installed = machine.version(package)
    if tried.name == "lightning.gpu":
        lightning = machine.version("pennylane-lightning") or RELEASE
        facts = (gpu.name, gpu.compute_capability, driver, torch.version.cuda, installed, lightning)
        why, install = diagnose(*facts)
    else:
        why, install = _install(f"{package}~={RELEASE}", installed)
    return replace(tried, why=why, install=install)


def diagnose(
    gpu: str | None = None,  # name of an NVIDIA GPU that torch or the driver lists
    capability: float | None = None,  # its compute capability, if known
    driver: str | None = None,  # its driver's version, if known
    torch_cuda: str | None = None,  # the CUDA version that torch is built for
    plugin: str | None = None,  # installed version of pennylane-lightning-gpu
    lightning: str = RELEASE,  # installed version of pennylane-lightning
    system: str = platform.system(),
) -> tuple[str, str | None]:
    """Why `lightning.gpu` does not run on such a machine, and what to type (None: no command helps)."""
    if system != "Linux":
        return f"No CUDA device: lightning.gpu needs Linux with an NVIDIA GPU, and this is {system}.", None
    if not gpu:
        return "No CUDA device: neither torch nor the driver lists an NVIDIA GPU here.", None
    if driver and tuple(map(int, driver.split("."))) < tuple(map(int, DRIVER.split("."))):
        why = f"The NVIDIA driver {driver} is too old for CUDA 12, which needs {DRIVER} or newer"
        return f"{why} (the command is Ubuntu's; others: nvidia.com/drivers).", "sudo ubuntu-drivers install"
    if capability and capability < CAPABILITY:
        why = f"{gpu} has compute capability {capability}, and lightning.gpu needs {CAPABILITY} or more"
        return f"{why}; use lightning.qubit.", None
    # The plugin of another release would pull another release of PennyLane in.
    why, command = _install(f"pennylane-lightning-gpu=={lightning}", plugin)
    if (torch_cuda or "").startswith("13"):
        why += f" torch brought CUDA 13 only ({torch_cuda}), for which lightning.gpu has no wheel; "
        why += "pip adds CUDA 12 libraries, which run beside torch's."
    return why, command


def _install(wanted: str, installed: str | None) -> tuple[str, str]:
    """The reason and the command, when all that can be at fault is the package itself."""
    package = re.split("[=~]", wanted)[0]
    if installed is None:
        return f"{package} is not installed.", f"pip install {wanted}"
    afresh = f"pip install --force-reinstall --no-deps {wanted}"  # the second command adds what it lacks
    return f"{package} is installed, yet its first circuit fails.", f"{afresh} && pip install {wanted}"
