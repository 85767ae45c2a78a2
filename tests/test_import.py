"""Importing qnnkit takes almost no time and changes nothing; no file is too long."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "qnnkit"

LATE = {
    "transformers", "peft", "tokenizers", "miditok", "symusic", "pandas", "sklearn", "accelerate", "dask",
    "papermill", "distributed", "optuna", "rich", "tensorboard", "mlflow", "matplotlib", "IPython", "sympy",
}  # fmt: skip


def python(code):
    """The JSON that `code` prints in a fresh interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- cost and side effects of an import --------------------------------------------------------------------

IMPORT = """
    import json, logging, os, random, sys, time, warnings
    import numpy, torch, pennylane

    def state():
        return {
            "torch's seed": torch.get_rng_state().tolist(),
            "numpy's seed": str(numpy.random.get_state()),
            "python's seed": str(random.getstate()),
            "dtype": str(torch.get_default_dtype()),
            "device": str(torch.get_default_device()),
            "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
            "gradients": torch.is_grad_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "environment": dict(os.environ),
            "loggers": [str(logging.root.handlers), logging.root.level],
            "warnings": [str(each) for each in warnings.filters],
            "path": sys.path,
            "excepthook": str(sys.excepthook),
        }

    def changed():
        return [name for name, value in state().items() if value != before[name]]

    before, modules, start = state(), set(sys.modules), time.process_time()  # whatever else is at work
    import qnnkit
    qnnkit.QuantumLayer
    facts = {"seconds": time.process_time() - start, "changed": changed()}
    facts |= {"modules": [*set(sys.modules) - modules]}
    import qnnkit.tasks, qnnkit.data.text
    missing = [name for name in qnnkit.__all__ if not hasattr(qnnkit, name) or name not in dir(qnnkit)]
    facts |= {"missing": missing, "changed by others": changed()}
    print(json.dumps(facts | {"of tasks": [*set(sys.modules) - modules]}))
"""


def test_the_import_is_fast_changes_nothing_and_loads_no_heavy_package():
    facts = python(IMPORT)
    assert facts["seconds"] < 0.3
    assert facts["changed"] == facts["missing"] == facts["changed by others"] == []
    assert not LATE & {name.split(".")[0] for name in facts["modules"]}
    assert not {"transformers", "peft", "tokenizers"} & set(facts["of tasks"])


def test_qnnkit_alone_loads_neither_torch_nor_pennylane():
    loaded = python("import json, sys, qnnkit, qnnkit.cli; print(json.dumps(sorted(sys.modules)))")
    assert {"torch", "pennylane", *LATE}.isdisjoint(loaded)


# --- files ------------------------------------------------------------------------------------------------


def test_no_file_is_too_long_and_module_names_are_unique():
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert [path for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > 400] == []
    assert sorted({path.stem for path in paths}) == sorted(path.stem for path in paths)
