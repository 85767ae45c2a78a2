"""qnnkit.device: the report is true of this machine; other machines are tried as plain facts."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from qnnkit import device
from qnnkit.device import accelerators, machine, simulators

LONGEST_LINE = 100  # columns of the table

T4 = device.GpuFacts(
    gpus=("Tesla T4",),
    capabilities=(7.5,),
    driver="550.54.15",
    torch_cuda="12.8",
    lightning="0.45.0",
    lacking=("custatevec-cu12",),
)
INSTALL = "pip install pennylane-lightning-gpu==0.45.0"


@pytest.fixture(scope="module")
def here():
    return device.report()


def python(code: str, **environment: str) -> str:
    """What `code` prints in a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the diagnosis of lightning.gpu, one machine a line ----------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "why", "install"),
    [
        (device.GpuFacts(system="Darwin", machine="arm64"), "macOS has no CUDA device", None),
        (replace(T4, system="Windows"), "no wheel for Windows", "wsl --install"),
        (replace(T4, machine="ppc64le"), "Linux on ppc64le", None),
        (replace(T4, system="FreeBSD"), "FreeBSD on x86_64", None),
        (device.GpuFacts(), "neither an NVIDIA GPU nor its driver", None),
        (device.GpuFacts(colab=True), "Runtime > Change runtime type", None),
        (device.GpuFacts(card=True), "no driver is loaded", "sudo ubuntu-drivers install"),
        (device.GpuFacts(driver="550.54.15"), "lists no GPU", "nvidia-smi -L"),
        (replace(T4, driver="470.256.02"), "driver 470.256.02 is too old", "sudo ubuntu-drivers install"),
        (replace(T4, driver="525.60.12"), "needs 525.60.13 or newer", "sudo ubuntu-drivers install"),
        (replace(T4, driver="470.256.02", gpus=()), "too old", "sudo ubuntu-drivers install"),
        (replace(T4, gpus=("Tesla P100",), capabilities=(6.0,)), "compute capability 6.0", None),
        (replace(T4, python=(3, 10)), "this is Python 3.10", "conda create --name qnnkit python=3.12"),
        (replace(T4, python=(3, 15)), "this is Python 3.15", "conda create --name qnnkit python=3.12"),
        (replace(T4, torch_cuda="13.0"), "CUDA 13 only (torch is built for 13.0)", INSTALL),
        (T4, "is not installed; nothing else is in its way", INSTALL),
        (replace(T4, driver="525.60.13"), "nothing else is in its way", INSTALL),
        (replace(T4, driver="580.65.06"), "nothing else is in its way", INSTALL),  # made for CUDA 13
        (replace(T4, torch_cuda=None), "nothing else is in its way", INSTALL),  # a CPU build of torch
        (replace(T4, torch_cuda="13.0", lacking=()), "nothing else is in its way", INSTALL),
        (replace(T4, capabilities=(6.1, 8.9)), "nothing else is in its way", INSTALL),
        (replace(T4, driver=None, capabilities=()), "nothing else is in its way", INSTALL),
        (replace(T4, machine="aarch64", python=(3, 13)), "nothing else is in its way", INSTALL),
        (replace(T4, colab=True), "nothing else is in its way", f"%{INSTALL}"),
        (replace(T4, lightning=None), "not installed", "pip install pennylane-lightning-gpu"),
        (replace(T4, plugin="0.44.0"), "0.44.0 does not fit pennylane-lightning 0.45.0", INSTALL),
        (replace(T4, plugin="0.45.0"), "without its CUDA 12 libraries", INSTALL),
        (replace(T4, plugin="0.45.0", torch_cuda="13.0"), "libraries (torch's are CUDA 13.0)", INSTALL),
        (
            replace(T4, plugin="0.45.0", lacking=()),
            "yet its first circuit fails",
            "pip install --force-reinstall --no-deps pennylane-lightning-gpu==0.45.0",
        ),
    ],
)
def test_diagnosis_names_the_first_real_obstacle(facts, why, install):
    remedy = device.diagnose(facts)
    assert why in remedy.why
    assert remedy.install == install
    assert remedy.why.endswith(".")


# --- the report --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_cores_are_those_of_this_process(here):
    affinity = len(os.sched_getaffinity(0))
    assert here.logical_cores <= affinity
    if here.core_quota is None:
        assert here.logical_cores == affinity
    assert 1 <= here.physical_cores <= here.logical_cores <= here.machine_cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_cores_follow_affinity():
    one = min(os.sched_getaffinity(0))
    told = python(
        f"""
        import os
        os.sched_setaffinity(0, {{{one}}})
        from qnnkit.device import machine
        print(machine.cores())
        """
    )
    assert told.strip() == "(1, 1)"


def test_report_is_true_of_this_machine(here):
    import psutil
    import torch

    assert here.platform in ("colab", "mac", "linux", "windows")
    assert here.python == ".".join(str(number) for number in sys.version_info[:3])
    assert here.versions["torch"] == torch.__version__
    assert 0 < here.ram_available <= here.ram_total <= psutil.virtual_memory().total
    assert here.disk_free > 0
    assert here.torch_threads == torch.get_num_threads()
    assert here.cuda_runtime == torch.version.cuda
    assert [one.device for one in here.accelerators if one.computes] == [
        str(found) for found in device.usable_devices()[1:]
    ]


def test_the_two_simulators_that_qnnkit_requires_run(here):
    states = {one.name: one for one in here.simulators}
    assert list(states) == list(device.SIMULATORS)
    for name in ("default.qubit", "lightning.qubit"):
        assert states[name].state == "runs", states[name].error
        assert states[name].seconds > 0
        assert states[name].why is states[name].install is None
        assert name not in here.missing


def test_lightning_gpu_runs_or_says_why_not(here):
    gpu = next(one for one in here.simulators if one.name == "lightning.gpu")
    if gpu.state == "runs":
        assert gpu.apart
    else:
        assert here.missing["lightning.gpu"].why == gpu.why
        assert (gpu.state == "missing") == (machine.version("pennylane-lightning-gpu") is None)


def test_json_round_trip(here):
    told = here.as_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["simulators"][0]["name"] == "default.qubit"
    assert told["missing"] == {
        name: {"why": remedy.why, "install": remedy.install} for name, remedy in here.missing.items()
    }


def test_table_has_each_row_and_fits_a_terminal(here):
    text = device.table(here)
    assert max(len(line) for line in text.splitlines()) <= LONGEST_LINE
    labels = {line[2:20].strip() for line in text.splitlines() if line.startswith("  ")}
    assert labels >= {
        "platform",
        "processor",
        "cores",
        "memory",
        "disk",
        "cpu",
        "installed",
        *device.SIMULATORS,
    }
    flat = " ".join(text.split())
    assert all(f"{name} {version}" in flat for name, version in here.versions.items() if version)


def test_table_ends_with_what_is_missing_and_the_command(here):
    t4 = device.Accelerator("cuda:0", "Tesla T4", True, None, 15 * 2**30, 14 * 2**30, "7.5")
    gone = device.diagnose(replace(T4, torch_cuda="13.0"))
    text = device.table(
        replace(
            here,
            platform="colab",
            accelerators=(t4,),
            driver="580.65.06",
            cuda_runtime="13.0",
            core_quota=1.5,
            notes=(accelerators.colab_note("Tesla T4"),),
            missing={"lightning.gpu": gone},
        )
    )
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= LONGEST_LINE
    assert lines[-1].strip() == f"Type: {gone.install}"
    assert "computes: Tesla T4, 14.0 of 15.0 GiB free, compute capability 7.5" in text
    assert "quota is 1.5" in " ".join(text.split())
    assert text.count("Colab drew Tesla T4") == 1


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_gpu_that_torch_cannot_use_is_listed_from_the_driver(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Tesla T4, 470.256.02, 15360, [N/A], 7.5'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = device.report(devices=("lightning.gpu",))
    (gpu,) = found.accelerators
    assert (gpu.device, gpu.name, gpu.computes, gpu.compute_capability) == (
        "cuda:0",
        "Tesla T4",
        False,
        "7.5",
    )
    assert (gpu.memory_total, gpu.memory_free) == (15360 * 2**20, None)
    assert "torch sees no CUDA device" in gpu.error
    assert found.driver == "470.256.02"
    assert found.missing["cuda:0"].install == "pip install --force-reinstall torch"
    if sys.platform == "linux":
        assert "driver 470.256.02 is too old" in found.missing["lightning.gpu"].why
    assert "does not compute: Tesla T4, compute capability 7.5" in device.table(found)


def test_disk_is_asked_where_the_workspace_will_be(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "not" / "yet"))
    told = device.report(devices=())
    assert told.workspace == str(tmp_path / "not" / "yet")
    assert told.disk_free > 0


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({}, None, None),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5, None),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2.0, None),
        (
            {"a/b/memory.max": "1000", "a/b/memory.current": "400", "a/b/memory.stat": "inactive_file 100"},
            None,
            (1000, 700),
        ),
        ({"a/b/memory.max": "max", "a/b/memory.current": "400"}, None, None),
    ],
)
def test_container_limits_version_2(tmp_path, files, quota, limit):
    (tmp_path / "membership").write_text("0::/a/b\n")
    _plant(tmp_path / "groups", files)
    assert machine.core_quota(tmp_path / "groups", tmp_path / "membership") == quota
    assert machine.memory_limit(tmp_path / "groups", tmp_path / "membership") == limit


def test_container_limits_version_1(tmp_path):
    (tmp_path / "membership").write_text("4:memory:/a\n2:cpu,cpuacct:/a\n1:name=systemd:/\n")
    _plant(
        tmp_path / "groups",
        {
            "cpu/a/cpu.cfs_quota_us": "-1",
            "cpu/a/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "50000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/a/memory.limit_in_bytes": "1000",
            "memory/a/memory.usage_in_bytes": "900",
            "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 50",
        },
    )
    assert machine.core_quota(tmp_path / "groups", tmp_path / "membership") == 0.5
    assert machine.memory_limit(tmp_path / "groups", tmp_path / "membership") == (1000, 150)


def _plant(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


# --- simulators that load and then fail --------------------------------------------------------------------

STUBS = """
import os, time
import pennylane as qp

class Raises(qp.devices.DefaultQubit):
    def execute(self, circuits, execution_config=None):
        raise RuntimeError("no kernel image is available\\nsecond line")

class WrongValue(qp.devices.DefaultQubit):
    def execute(self, circuits, execution_config=None):
        return tuple(result + 0.01 for result in super().execute(circuits, execution_config))

class WrongGradient(qp.devices.DefaultQubit):
    def execute(self, circuits, execution_config=None):
        return tuple(2 * result - result.detach() for result in super().execute(circuits, execution_config))
"""


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """PennyLane devices that break, installed as a plugin is: modules and their entry points."""
    (tmp_path / "stub_devices.py").write_text(STUBS)
    (tmp_path / "stub_crash.py").write_text("import os\nos.abort()\n")
    (tmp_path / "stub_hang.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "stub_import.py").write_text(
        "import warnings\nwarnings.warn('libcudart.so.12: cannot open shared object file')\n"
        "raise ImportError('binaries are not available')\n"
    )
    plugin = tmp_path / "stub_plugin-1.2.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: stub-plugin\nVersion: 1.2\n")
    (plugin / "entry_points.txt").write_text(
        "[pennylane.plugins]\nstub.raises = stub_devices:Raises\nstub.value = stub_devices:WrongValue\n"
        "stub.gradient = stub_devices:WrongGradient\nstub.crash = stub_crash:Device\n"
        "stub.hang = stub_hang:Device\nstub.import = stub_import:Device\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("stub.raises", "RuntimeError: no kernel image is available"),
        ("stub.value", "<Z> after RX at 0.7 came out as 0.774842 instead of 0.764842"),
        ("stub.gradient", "its gradient at 0.7 came out as -1.28844 instead of -0.644218"),
        (
            "stub.import",
            "ImportError: binaries are not available; libcudart.so.12: cannot open shared object file",
        ),
    ],
)
def test_a_device_that_loads_but_fails_its_first_circuit_is_reported_with_its_error(stubs, name, error):
    found = device.report(devices=(name,))
    (tried,) = found.simulators
    assert (tried.state, tried.error, tried.version) == ("fails", error, "1.2")
    assert name in found.missing
    text = device.table(found)
    assert "fails" in text
    assert error[:60] in text
    assert max(len(line) for line in text.splitlines()) <= LONGEST_LINE


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGABRT code")
def test_a_device_that_kills_its_process_is_reported(stubs):
    tried = device.probe("stub.crash", apart=True)
    assert (tried.state, tried.apart) == ("fails", True)
    assert "killed its process (SIGABRT)" in tried.error


def test_a_device_that_hangs_is_reported(stubs):
    tried = device.probe("stub.hang", apart=True, timeout=0.5)
    assert (tried.state, tried.error) == ("fails", "its first circuit gave no answer within 0.5 s")


def test_a_process_of_its_own_gives_the_same_answer():
    tried = device.probe("lightning.qubit", apart=True)
    assert (tried.state, tried.apart, tried.error) == ("runs", True, None)
    assert tried.seconds > 0


def test_an_unknown_device_is_missing():
    assert device.probe("no.such").state == "missing"


def test_lightning_gpu_is_tried_in_a_process_of_its_own():
    assert "lightning.gpu" in simulators.APART


# --- choosing ----------------------------------------------------------------------------------------------


def test_choose_the_cpu():
    import torch

    assert device.choose("cpu") == torch.device("cpu")
    assert device.usable_devices()[0] == torch.device("cpu")


def test_auto_takes_cuda_exactly_when_it_computes():
    usable = [str(found) for found in device.usable_devices()]
    assert device.choose().type == ("cuda" if "cuda:0" in usable else "cpu")


def test_choose_refuses_a_device_that_is_not_here():
    import torch

    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    with pytest.raises(ValueError) as refused:
        device.choose("cuda")
    assert str(refused.value) == (
        "Argument `device` must be one that can compute here, but is 'cuda'. torch sees no CUDA device "
        f"(torch {torch.__version__} is {build}); use cpu or auto."
    )
    with pytest.raises(ValueError, match="but is 'cuda:1'"):
        device.choose("cuda:1")


def test_choose_refuses_mps_off_a_mac():
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("MPS is here")
    with pytest.raises(ValueError, match=r"but is 'mps'\. torch sees no MPS device"):
        device.choose("mps")


@pytest.mark.parametrize("name", ["gpu", "cud", "CPU", "cuda:", "cuda:x", "", None, 0])
def test_choose_lists_the_names_it_knows(name):
    with pytest.raises(ValueError, match=r"be a known name.*The choices are auto, cpu, cuda, cuda:0, mps"):
        device.choose(name)


# --- where am I --------------------------------------------------------------------------------------------


def test_colab_is_seen_by_its_package(tmp_path):
    package = tmp_path / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('looking must not import it')\n")
    told = python(
        """
        from qnnkit import device
        from qnnkit.device import machine
        print(device.on_colab(), machine.platform_name(), machine.pip_install("a<2"))
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert told.strip() == 'True colab %pip install "a<2"'


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("Tesla T4", "Colab drew Tesla T4 (Turing, 16 GB; tensor cores for float16 but none for bfloat16)."),
        ("NVIDIA L4", "(Ada Lovelace, 24 GB"),
        ("NVIDIA A100-SXM4-40GB", "(Ampere, "),
        ("NVIDIA H100 80GB HBM3", "(Hopper, "),
        ("NVIDIA L40S", "Colab drew NVIDIA L40S. A circuit"),
        (None, "no GPU: this is a CPU runtime. Use Runtime > Change runtime type"),
    ],
)
def test_colab_note_says_what_was_drawn(gpu, says):
    assert says in accelerators.colab_note(gpu)


@pytest.mark.parametrize(
    ("system", "variables"),
    [("Darwin", {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}), ("Linux", {}), ("Windows", {})],
)
def test_launch_environment_returns_and_sets_nothing(system, variables):
    before = dict(os.environ)
    assert device.launch_environment(system) == variables
    assert dict(os.environ) == before


def test_import_is_light_and_changes_nothing():
    told = python(
        """
        import os, random, sys, threading
        before = dict(os.environ), random.getstate(), threading.active_count()
        from qnnkit import device
        device.launch_environment()
        assert (dict(os.environ), random.getstate(), threading.active_count()) == before
        print([name for name in ("torch", "pennylane", "psutil", "numpy") if name in sys.modules])
        """
    )
    assert told.strip() == "[]"


def test_report_changes_no_global():
    import numpy as np
    import torch

    def state():
        return (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_num_threads(),
            torch.random.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            dict(os.environ),
        )

    before = state()
    device.report(devices=("default.qubit", "lightning.qubit"))
    assert state() == before


# --- on the hardware itself --------------------------------------------------------------------------------


@pytest.mark.gpu
def test_cuda_is_reported_and_chosen():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    first = device.report(devices=()).accelerators[0]
    assert (first.device, first.name) == ("cuda:0", torch.cuda.get_device_name(0))
    assert first.computes
    assert 0 < first.memory_free <= first.memory_total
    assert device.choose("auto").type == "cuda"
    assert device.choose("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ValueError, match="counted from cuda:0"):
        device.choose("cuda:99")


@pytest.mark.gpu
def test_lightning_gpu_runs_where_it_is_installed():
    if machine.version("pennylane-lightning-gpu") is None:
        pytest.skip("pennylane-lightning-gpu is not installed")
    tried = device.probe("lightning.gpu")
    assert tried.state == "runs", tried.error


@pytest.mark.mps
def test_mps_is_reported_and_chosen_on_request_only():
    import torch

    if not torch.backends.mps.is_available():
        pytest.skip("no MPS device")
    found = device.report(devices=())
    assert found.apple_silicon
    assert found.chip.startswith("Apple")
    assert [one.device for one in found.accelerators] == ["mps"]
    assert device.choose("mps") == torch.device("mps")
    assert device.choose("auto") == torch.device("cpu")
