"""qnnkit.device: the report is true of this machine; other machines are simulated by their facts."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from qnnkit import device
from qnnkit.device import accelerators, machine, simulators
from tests.toys import refused

INSTALL = "pip install 'qnnkit[gpu]'"


@pytest.fixture
def local(tmp_path):
    """This machine's report, which sets no variable; conftest watches other globals in every test."""
    before = dict(os.environ)
    report = device.report(tmp_path / "not" / "yet")
    assert dict(os.environ) == before
    return report


@pytest.mark.parametrize(
    ("name", "system", "gpu", "remedy"),
    [
        ("lightning.gpu", "Linux", None, "this is Linux with no GPU."),
        ("lightning.qubit", "Darwin", None, "Type: pip install --upgrade pennylane-lightning"),
    ],
)
def test_a_failing_simulator_has_a_reason_or_a_command(monkeypatch, name, system, gpu, remedy):
    monkeypatch.setattr(simulators.platform, "system", lambda: system)
    assert remedy in simulators.remedy(simulators.Simulator(name, "fails"), gpu)
    assert simulators.remedy(simulators.Simulator(name, "runs"), gpu) is None


def test_the_report_is_true_of_this_machine(local):
    facts = local.machine
    assert facts["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert 0 < facts["ram_available"] <= facts["ram_total"]
    assert facts["disk_free"] > 0 and facts["workspace"].endswith("yet")
    assert facts["torch_threads"] == torch.get_num_threads() and 1 <= facts["cores"] <= os.cpu_count()
    assert device.choose("auto").type == ("cpu" if accelerators.obstacle("cuda") else "cuda")
    right, other, gpu = local.simulators
    assert (right.state, other.state, gpu.error is None) == ("runs", "runs", gpu.state == "runs")
    assert right.seconds > 0 and (right.name, other.name) == ("default.qubit", "lightning.qubit")


def test_a_container_limits_cores_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    without = machine.cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.cores() == without
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 300\nfile 600\n")
    assert machine.cores() == 1
    assert machine.memory() == (1000, 700)


def test_the_table_has_each_row_and_ends_with_missing_parts(local):
    labels = {line[2:20].strip() for line in device.table(local).splitlines() if line.startswith("  ")}
    assert labels >= {"platform", "processor", "cores", "memory", "disk", "cpu", "mps", "lightning.gpu"}
    gpu = accelerators.Accelerator("cuda:0", "Tesla T4", None, 15 * 2**30, 14 * 2**30, 7.5)
    gone = simulators.Simulator("lightning.gpu", "missing", error="not installed")
    colab = replace(local, machine=local.machine | {"colab": True}, accelerators=(gpu,), simulators=(gone,))
    text, none = device.table(colab), replace(gpu, name=None, error="none")
    assert max(map(len, text.splitlines())) <= 100
    assert f"Type: {INSTALL}" in " ".join(text.split()).rpartition("What does not run")[2]
    assert "computes: Tesla T4, 14.0 of 15.0 GiB free, compute capability 7.5" in text
    gave = "gave no GPU: see Runtime > Change runtime type"
    assert gave in device.table(replace(colab, accelerators=(none,))) and gave not in text
    lost = device.table(replace(local, accelerators=(replace(gpu, device="mps", error="lost"), none)))
    assert "does not compute: Tesla T4, lost" in lost and gave not in lost


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
def test_a_gpu_that_torch_cannot_use_is_listed_by_the_driver(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Tesla T4, 470.256.02'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gpu = accelerators.accelerators()[0]
    assert (gpu.device, gpu.name, gpu.error) == ("cuda:0", "Tesla T4", accelerators.obstacle("cuda"))
    assert device.report(tmp_path).machine["nvidia_driver"] == "470.256.02"
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.full(shape, 2.0))
    assert accelerators.obstacle("cpu") == "a matrix product summed to 2048.0 instead of 512"


def test_each_cuda_device_is_listed_with_its_memory_or_its_error(monkeypatch):
    properties = SimpleNamespace(name="Tesla T4", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (14, 15))
    monkeypatch.setattr(accelerators, "obstacle", {"cuda:0": None, "cuda:1": "lost", "mps": "none"}.get)
    first, second, _ = accelerators.accelerators()
    assert first == accelerators.Accelerator("cuda:0", "Tesla T4", None, 15, 14, 7.5)
    assert second == accelerators.Accelerator("cuda:1", "NVIDIA GPU", "lost")
    assert [str(usable) for usable in device.usable_devices()] == ["cpu", "cuda:0"]


# --- simulators that load and then fail --------------------------------------------------------------------

NO_LIBRARY = "libcudart.so.12: cannot open shared object file"
WRONG = "<Z> after RX(0.7) and its gradient are"
EXECUTE = "import pennylane\nclass Device(pennylane.devices.DefaultQubit):\n"
EXECUTE += "    def execute(self, circuits, **config):\n        "
MODULES = {
    "value": f"{EXECUTE}return tuple(z + 0.01 for z in super().execute(circuits, **config))",
    "gradient": f"{EXECUTE}return tuple(2 * z - z.detach() for z in super().execute(circuits, **config))",
    "import": f"import warnings\nwarnings.warn('{NO_LIBRARY}')\nraise ImportError('no binaries')",
    "crash": "import os\nos.write(2, b'first\\nlast')\nos.abort()",
    "hang": "import time\ntime.sleep(60)",
}


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """Broken PennyLane devices, installed like plugins: modules and their entry points."""
    for name, code in MODULES.items():
        (tmp_path / f"stub_{name}.py").write_text(code)
    plugin = tmp_path / "stub_plugin-1.2.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: stub-plugin\nVersion: 1.2\n")
    entries = "\n".join(f"stub.{name} = stub_{name}:Device" for name in MODULES)
    (plugin / "entry_points.txt").write_text(f"[pennylane.plugins]\n{entries}\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("stub.value", f"{WRONG} 0.774842 and -0.644218 instead of 0.764842 and -0.644218"),
        ("stub.gradient", f"{WRONG} 0.764842 and -1.28844 instead of 0.764842 and -0.644218"),
        ("stub.import", f"ImportError: no binaries; {NO_LIBRARY}"),
    ],
)
def test_a_device_that_fails_its_first_circuit_is_reported_with_its_error(stubs, local, name, error):
    tried = device.probe(name)
    assert (tried.state, tried.error) == ("fails", error)
    assert f"fails     {error[:60]}" in device.table(replace(local, simulators=(tried,)))


def test_lightning_gpu_is_tried_in_a_subprocess_that_may_crash_or_hang(stubs, monkeypatch):
    crash, hang = simulators.try_apart("stub.crash", 60), simulators.try_apart("stub.hang", 0.2)
    assert crash.error == "its first circuit killed its process (SIGABRT): last"
    assert hang.error == "its first circuit gave no answer within 0.2 s"
    assert crash.state == hang.state == "fails"
    assert simulators.try_apart("stub.import", 60) == simulators.try_here("stub.import")
    assert device.probe("no.such").state == "missing"
    monkeypatch.setattr(simulators, "try_apart", lambda name, timeout: (name, timeout))
    monkeypatch.setattr(simulators.metadata, "entry_points", lambda **names: [names])
    assert device.probe("lightning.gpu", timeout=5) == ("lightning.gpu", 5)


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "CPU", "cuda:", "cuda:x", "", None, 0])
def test_choose_refuses_a_missing_or_unknown_device(name):
    with refused("device"):
        device.choose(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_is_reported_and_its_simulator_runs(local):
    first = local.accelerators[0]
    assert (first.device, first.name, first.error) == ("cuda:0", torch.cuda.get_device_name(0), None)
    assert 0 < first.memory_free <= first.memory_total
    assert local.simulators[-1].state == "runs" or not machine.version("pennylane-lightning-gpu")
