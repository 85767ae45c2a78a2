"""Fixtures for every test: a test must leave the globals of torch, NumPy and Python unchanged."""

import gc
import os
import random
import signal
import sys
from typing import Any

import pytest
import rich.style  # noqa: F401  scikit-learn imports it, and it draws from Python's generator once

from tests import forked
from tests.showing import browser  # noqa: F401  a fixture
from tests.wheels import installed, wheel  # noqa: F401  fixtures

os.fsync = lambda descriptor: None  # no test cuts the power, and a busy disk is slow
os.environ["HF_HUB_OFFLINE"] = "1"  # no test contacts the Hub
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if a shell started the tests with `&`
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]  as in warm.begin
gc.disable()  # until every test is imported: see qnnkit.kernel

LONGEST = (
    *("notebooks", "notebook_cells", "colab_image", "colab", "measure_memory", "recipes", "your_own"),
    *("contract", "study", "batch", "kinds", "random_circuits", "claims", "runs", "train", "simulator"),
)
"""The slowest test files, which start first, so that two workers that share the files end together."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    """All workers share one fork server, which the process that hands out tests starts."""
    if sys.platform == "linux":
        forked.server.ensure_running()
        node.workerinput["forks"] = forked.server._forkserver_address


def pytest_configure(config: pytest.Config) -> None:
    if "forks" in getattr(config, "workerinput", ()):
        forked.share(config.workerinput["forks"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    if "triton" not in sys.modules:  # see qnnkit.kernel
        gc.freeze()  # garbage collection need not visit thousands of tests and modules again
    gc.enable()


def _globals() -> dict[str, Any]:
    import numpy as np
    import torch  # not above: the process that only distributes tests needs neither

    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "CUDA's random state": [state.numpy().tobytes() for state in cuda],
        "NumPy's random state": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"]),
        "Python's random state": random.getstate(),
    }


@pytest.fixture(autouse=True)
def unchanged_globals():
    """Fails a test that changes a global; random values come from a generator."""
    before, path = _globals(), list(sys.path)
    yield
    sys.path[:] = path  # folders of recipes are added to it
    after = _globals()
    if not before["CUDA's random state"]:  # this test used CUDA first
        after["CUDA's random state"] = before["CUDA's random state"]
    changed = [name for name, value in before.items() if value != after[name]]
    assert not changed, f"the test changed {', '.join(changed)}"


@pytest.fixture(autouse=True)
def no_race(request, monkeypatch):
    """Skips the measurements that place a net, except in test_measure_placement: load decides no test."""
    if not request.node.nodeid.startswith("tests/measure/test_measure_placement.py"):
        from qnnkit.measure import placement

        monkeypatch.setattr(placement, "timed", lambda *args: ({}, None, None))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A new workspace."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The paths of a slow home, `drive`, and of a fast local folder before it, `disk`."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "drive"))
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "disk"))
    (tmp_path / "drive").mkdir()
    return tmp_path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Twelve 6x6 images in each of two class folders, bright at the top or at the bottom; read only."""
    from tests import toys

    return toys.pictures(tmp_path_factory.mktemp("pictures"))
