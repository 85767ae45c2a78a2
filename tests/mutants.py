"""Plants one error at a time in a copy of the kit and runs the tests that should catch it.

    python -m tests.mutants               all of MUTANTS, and the number of errors that no test caught
    python -m tests.mutants stats data    the errors of these files

The kit itself is not changed. An uncaught error needs a test; a changed line of code needs a new row.
"""

import csv
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = {".git", ".venv", ".colab-image", "runs", "batches"}
"""Folders of the checkout that the copy lacks."""
OPTIONS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of modules imported before pytest
OPTIONS += ("-o", "faulthandler_timeout=120")  # a hanging test counts as caught
with Path(__file__).with_suffix(".tsv").open(encoding="utf-8", newline="") as table:
    MUTANTS = [tuple(row) for row in csv.reader(table, delimiter="\t")][1:]
"""(file of the kit, old text that occurs once, new text, names of test files)."""


def caught(copy: Path, tests: str) -> str | None:
    """The first test of these files that fails, in a process that has their common imports."""
    child = os.fork()
    if not child:
        status = 99
        try:
            os.chdir(copy)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            named = [str(path) for name in tests.split() for path in Path("tests").rglob(f"test_{name}.py")]
            status = pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", *OPTIONS, *named])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(int(status))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), (copy / "log").read_text()
    log = (copy / "log").read_text()
    failed = re.findall(r"^(?:FAILED|ERROR) tests/\S*?(test_\S+)", log, flags=re.MULTILINE)
    failed += re.findall(r'(test_\w+\.py", line \d+ in test_\w+)', log)  # if a test hangs
    return failed[0] if status else None


def main(wanted: list[str]) -> int:
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kit"
        shutil.copytree(ROOT, copy, ignore=lambda at, _: LEFT_OUT if at == str(ROOT) else set())
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        import peft  # noqa: F401
        import pennylane  # noqa: F401  once, for all of them
        import torch._dynamo  # noqa: F401

        missed, passed = 0, set()
        for name, old, new, tests in MUTANTS:
            if wanted and not any(each in name for each in wanted):
                continue
            if tests not in passed and (failed := caught(copy, tests)):
                sys.exit(f"{failed} fails without a planted error: mend it first.")
            passed.add(tests)
            path, start = copy / "qnnkit" / name, time.monotonic()
            text = path.read_text()
            if text.count(old) != 1:
                answer = f"occurs {text.count(old)} times"
            else:
                path.write_text(text.replace(old, new))
                answer = caught(copy, tests) or "NOT CAUGHT"
                path.write_text(text)
            missed += not answer.startswith("test_")
            took = time.monotonic() - start
            print(f"{took:4.0f} s  {name}: {new.strip()!r} for {old.strip()!r}: {answer}", flush=True)
    print(f"{missed} not caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
