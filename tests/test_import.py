"""Importing qnnkit costs next to nothing and changes nothing; its parts import downwards only."""

import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "qnnkit"
SECONDS = 0.3  # DESIGN.md, section 7
LINES = 500  # DESIGN.md, section 3

LATE = {
    "transformers", "peft", "tokenizers", "miditok", "symusic", "pandas", "sklearn", "accelerate", "dask",
    "papermill", "distributed", "optuna", "rich", "tensorboard", "mlflow", "matplotlib", "IPython", "sympy",
}  # fmt: skip


def python(code):
    """What `code` prints as JSON in a fresh interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- the cost and the traces of an import ------------------------------------------------------------------

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

    ours, theirs = os.pipe()
    for _ in range(3):  # each imports the kit anew
        if os.fork() == 0:
            before, modules = state(), set(sys.modules)
            start = time.perf_counter()
            import qnnkit
            qnnkit.QuantumLayer
            seconds = time.perf_counter() - start
            after = state()
            new = {name.split(".")[0] for name in set(sys.modules) - modules}
            names = {name: hasattr(qnnkit, name) for name in qnnkit.__all__}
            changed = [name for name in before if before[name] != after[name]]
            rest = [name for name in before if before[name] != state()[name]]
            import qnnkit.tasks, qnnkit.data.text
            os.write(theirs, json.dumps({
                "seconds": seconds, "changed": changed, "modules": sorted(new), "names": names,
                "changed by the rest": rest,
                "of tasks": sorted({name.split(".")[0] for name in set(sys.modules) - modules}),
            }).encode() + b"\\n")
            os._exit(0)
        os.wait()
    os.close(theirs)
    print(json.dumps([json.loads(line) for line in os.fdopen(ours)]))
"""


@pytest.fixture(scope="module")
def imports():
    return python(IMPORT)


def test_the_import_is_quick_changes_nothing_and_loads_nothing_heavy(imports):
    assert statistics.median(each["seconds"] for each in imports) < SECONDS
    assert imports[0]["changed"] == imports[0]["changed by the rest"] == []
    assert LATE & set(imports[0]["modules"]) == set()
    assert {"transformers", "peft", "tokenizers"} & set(imports[0]["of tasks"]) == set()


def test_every_public_name_is_there(imports):
    import qnnkit

    assert all(imports[0]["names"].values()) and set(imports[0]["names"]) <= set(dir(qnnkit))
    with pytest.raises(AttributeError, match="no attribute 'Quantumlayer'"):
        _ = qnnkit.Quantumlayer  # pyright: ignore[reportAttributeAccessIssue]


def test_qnnkit_alone_loads_neither_torch_nor_pennylane():
    found = python("import json, sys, qnnkit, qnnkit.cli; print(json.dumps(sorted(sys.modules)))")
    assert {"torch", "pennylane", *LATE} & set(found) == set()


# --- the map -----------------------------------------------------------------------------------------------


def test_parts_import_as_the_contracts_of_pyproject_say():
    """Downwards only, no circles inside a part, matplotlib in plots alone."""
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout


def test_no_file_is_too_long_and_a_name_stands_for_one_module():
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert [path for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > LINES] == []
    assert sorted({path.stem for path in paths}) == sorted(path.stem for path in paths)
    fillers = re.compile(r"def _?(here|own|told|found|rest)\(")
    assert [path for path in paths if fillers.search(path.read_text())] == []


def test_git_ignores_no_part_of_the_package():
    """A line such as `runs/` in .gitignore would keep qnnkit/runs out of every clone."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    paths = [str(path.relative_to(root)) for path in PACKAGE.rglob("*") if "__pycache__" not in path.parts]
    command = ["git", "check-ignore", "--no-index", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
