"""Plants one error at a time in a copy of the kit and runs the tests that should notice it.

    python -m tests.mutants               all of MUTANTS, and the number of those that no test has caught
    python -m tests.mutants stats data    those of these files

The kit itself is not changed. An error that none catches wants a test; an old text that is gone, a new row.
"""

from __future__ import annotations

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
COPIED = ("qnnkit", "tests", "notebooks", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
OPTIONS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of what was imported before pytest began
OPTIONS += ("-o", "faulthandler_timeout=120")  # a test that waits for ever has noticed, too
# file of the kit, old text (which stands there once), new text, files of tests
MUTANTS = (
    ("stats/intervals.py", "(1 + level) / 2, n - 1", "(1 + level) / 2, n", "stats"),
    ("stats/verdicts.py", "2 * float(t.sf(", "float(t.sf(", "stats"),
    ("stats/intervals.py", "right + 1, n - right)", "right, n - right)", "stats"),
    ("stats/verdicts.py", "margin - abs(mean)", "margin + abs(mean)", "stats"),
    (
        "stats/intervals.py",
        "middle = statistics.fmean(logs) + variance / 2",
        "middle = statistics.fmean(logs)",
        "stats",
    ),
    ("circuits.py", "wires[1:] + wires[:1]", "wires[1:] + wires[1:2]", "circuits"),
    ("circuits.py", "side = (first + layer) % 2", "side = layer % 2", "circuits"),
    (
        "circuits.py",
        "weights.uniform_(0, 2 * math.pi",
        "weights.uniform_(0, math.pi",
        "circuits initialisations",
    ),
    (
        "workspace.py",
        "            os.fsync(file.fileno())\n        draft.replace(path)",
        "        draft.replace(path)",
        "workspace",
    ),
    ("workspace.py", "        draft.replace(path)", "        path.write_bytes(content)", "workspace mirror"),
    ("workspace.py", "if old.exists() and not folder.exists():", "if False:", "workspace"),
    ("settings.py", "sort_keys=True).encode()", "sort_keys=False).encode()", "settings"),
    ("checkpoint/file.py", "            os.fsync(file.fileno())\n", "", "checkpoint"),
    ("checkpoint/mirror.py", '{".jsonl": 2', '{".jsonl": 4', "mirror"),
    ("checkpoint/mirror.py", "RESULT: 7", "RESULT: 0", "mirror"),
    ("checkpoint/mirror.py", "if RESULT in gone or RESULT in changed", "if RESULT in gone", "mirror"),
    ("checkpoint/mirror.py", "in sorted(changed, key=rank)", "in changed", "mirror"),
    ("checkpoint/store.py", "*self._kept][: self.keep]", "*self._kept][: self.keep + 1]", "checkpoint"),
    ("checkpoint/store.py", "for name in reversed(names)", "for name in names", "checkpoint"),
    ("checkpoint/store.py", "key=lambda match: int(match[1])", "key=lambda match: match[1]", "checkpoint"),
    ("train/optimizer.py", "(epoch - warmup) / max(total - warmup", "epoch / max(total - warmup", "train"),
    ("train/optimizer.py", "0.5 * (1 + math.cos", "0.5 * (1 - math.cos", "train"),
    ("train/progress.py", "self.batch += 1", "self.batch += 0", "train"),
    (
        "train/stepper.py",
        "weight.grad *= expected / total",
        "weight.grad *= total / expected",
        "train processes",
    ),
    ("train/loop.py", "score > progress.best_score:", "score >= progress.best_score:", "train"),
    (
        "train/loop.py",
        "if any(self.processes.sums(bool(self.stop))):\n                    self.stop.now()",
        "pass",
        "train",
    ),
    ("train/stepper.py", "own * step.count * processes.world / expected", "own / len(calls)", "train"),
    ("train/loop.py", "waited >= self.config.patience", "waited > self.config.patience", "train"),
    ("train/optimizer.py", "if group.clip_norm:", "if False:", "train"),
    ("train/loop.py", "        optimizer.zero_grad()\n        progress", "        progress", "train"),
    ("train/loop.py", "place = progress.epoch + index / self.steps", "place = progress.epoch", "train"),
    ("train/loop.py", "seed_all(self.seed, epoch)\n", "seed_all(self.seed)\n", "train"),
    ("train/resume.py", "60 * minutes", "3600 * minutes", "train"),
    ("train/optimizer.py", '"weight_decay": group.weight_decay', '"weight_decay": 0.0', "train"),
    ("train/processes.py", "in batches[first:]", "in batches[first:-1]", "train"),
    ("train/processes.py", "rank < len(indices)", "True", "processes"),
    ("train/stepper.py", "self.backward(compute(), 1 / len(calls))", "self.backward(compute())", "train"),
    ("train/recompute.py", "part._buffers.update(buffers)", "pass", "recompute"),
    ("train/progress.py", "self.seconds[1:] or self.seconds", "self.seconds", "train"),
    ("train/progress.py", "self.count += own * step.count", "self.count += own", "train"),
    ("tasks/classification.py", "loss.detach() * len(labels)", "loss.detach()", "train tasks"),
    ("tasks/contrastive.py", '"text_to_image": 0}', '"text_to_image": 1}', "contrastive"),
    ("tasks/contrastive.py", "(places[name] <= k)", "(places[name] < k)", "contrastive"),
    (
        "layers/quanvolution.py",
        "patches.permute(4, 5, 0, 1, 2, 3)",
        "patches.permute(5, 4, 0, 1, 2, 3)",
        "layers",
    ),
    (
        "layers/quanvolution.py",
        "values.shape[-1]).movedim(-1, 2)",
        "values.shape[-1]).movedim(-1, 1)",
        "layers",
    ),
    ("layers/controls.py", "scaled = inputs / math.pi", "scaled = inputs", "layers"),
    (
        "layers/controls.py",
        "_MAKE[name](layer, seed * 1000 + i)",
        "_MAKE[name](layer, i)",
        "layers models",
    ),
    ("simulator/matrices.py", "to_angles -= to_product", "to_angles += to_product", "simulator"),
    (
        "simulator/matrices.py",
        "table @ offset)",
        "table @ np.zeros_like(offset))",
        "simulator random_circuits",
    ),
    ("simulator/readout.py", "shift = n - 1 - wires.index(wire)", "shift = wires.index(wire)", "simulator"),
    ("simulator/readout.py", "(1j * sign if", "(-1j * sign if", "simulator random_circuits"),
    (
        "simulator/steps.py",
        "add_product(to_angles, to_im, re, -1)",
        "add_product(to_angles, to_im, re, 1)",
        "simulator",
    ),
    ("simulator/fused.py", "put(np.argsort(both))", "put(both)", "simulator"),
    ("simulator/fusion.py", "- places[local] + places[to[local]]", "", "random_circuits"),
    (
        "simulator/fused.py",
        "turns.sin(), turns.cos()) * (period",
        "turns.sin(), turns) * (period",
        "contract",
    ),
    ("simulator/gates.py", "np.round(rates * 8) / 8", "np.round(rates * 4) / 4", "random_circuits"),
    ("simulator/circuit.py", "tuple(sorted(every)) if standard else", "", "contract"),
    ("simulator/circuit.py", "or not torch.allclose(", "or None is torch.allclose(", "contract"),
    ("simulator/circuit.py", "if not is_affine.all():", "if False:", "contract"),
    ("simulator/gates.py", "or not turn.rates.any()", "", "random_circuits"),
    ("simulator/circuit.py", "if func.__name__ in COMPARISONS and", "if False and", "contract"),
    (
        "simulator/pure.py",
        "all(map(operator.is_, map(operator.call",
        "any(map(operator.is_, map(operator.call",
        "contract",
    ),
    ("simulator/queueing.py", "value_key(metadata), *(", "*(", "contract"),
    (
        "simulator/queueing.py",
        "return operation, (key, *map(value_key, leaves)), ()",
        "return operation, key, ()",
        "contract",
    ),
    (
        "simulator/programs.py",
        "if not program.methods.hold()",
        "if False",
        "contract",
    ),
    ("simulator/shots.py", "coefficient * slopes[k]", "slopes[k]", "shots"),
    ("gradients/plateau.py", "1 / (2 * (d + 1) ** 2)", "1 / (2 * (d - 1) ** 2)", "plateau"),
    ("noise.py", '"low": low, "high": high', '"low": high, "high": low', "noise"),
    (
        "adapters/attach.py",
        'options["lora_alpha"] = 2 *',
        'options["lora_alpha"] = 1 *',
        "adapters adapters_sizes",
    ),
    (
        "models/blocks.py",
        "like.parameters()).dtype) / 255",
        "like.parameters()).dtype) / 256",
        "models features",
    ),
    ("data/text.py", "group, size = [], 0", "group = []", "text"),
    ("data/captions.py", 'side or sides.get(member.name, "any")', 'side or "any"', "captions"),
    ("data/captions.py", "if len(called[name]) == 1", "if called[name]", "captions"),
    ("data/records.py", 'message.get("weight") != 0', "True", "text"),
    ("data/pieces.py", "length - written.width):", "length):", "music_data"),
    (
        "data/splits.py",
        'keyed_generator("train_fraction", seed, *key)',
        'keyed_generator("train_fraction", *key)',
        "data",
    ),
    ("data/batches.py", "keyed_generator(self.seed, epoch)", "keyed_generator(self.seed)", "data train"),
    ("batch/search.py", "states.PRUNED if how", "states.FAIL if how", "batch"),
    (
        "runs/state.py",
        'state, notebook = str(failure.get("state", "failed")),',
        'state, notebook = "failed",',
        "batch",
    ),
    (
        "batch/engine.py",
        "self.failures[run.id] <= self.config.retries",
        "self.failures[run.id] < self.config.retries",
        "batch",
    ),
    (
        "measure/clock.py",
        "[: (len(times) + 1) // 2]",
        "[: len(times) // 2 + 1]",
        "measure_clock measure_placement",
    ),
    ("measure/predict.py", "traced.held - kept)", "traced.held)", "measure_plan"),
    ("runs/opening.py", "config.epochs > begun.epochs", "config.epochs != begun.epochs", "runs"),
)


def caught(copy: Path, tests: str) -> str | None:
    """The first test of these files that fails, in a process that begins with what they all import."""
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
    failed += re.findall(r'(test_\w+\.py", line \d+ in test_\w+)', log)  # where one waits for ever
    return failed[0] if status else None


def main(wanted: list[str]) -> int:
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kit"
        copy.mkdir()
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            else:
                shutil.copy(source, copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        import peft  # noqa: F401
        import pennylane  # noqa: F401  once, for all of them
        import torch._dynamo  # noqa: F401

        missed, whole = 0, set()
        for name, old, new, tests in MUTANTS:
            if wanted and not any(each in name for each in wanted):
                continue
            if tests not in whole and (failed := caught(copy, tests)):
                sys.exit(f"{failed} fails without a planted error: mend it first.")
            whole.add(tests)
            path, start = copy / "qnnkit" / name, time.monotonic()
            text = path.read_text()
            if text.count(old) != 1:
                answer = f"stands there {text.count(old)} times"
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
