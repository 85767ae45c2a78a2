"""Placement of a net: on whatever is faster by more than the noise; the choice is kept in its run."""

import copy
import itertools
import json
import re
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from qnnkit import runs
from qnnkit.device import machine
from qnnkit.measure import Lap, Workload, clock, placement, survey
from qnnkit.measure.placement import Candidate
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.same import same
from tests.toys import TINY, each_epoch, linear

ON_CPU: dict[str, Any] = {"device": "cpu", "seconds": 0.2}
AUTO = Settings().model_copy(update={"batch_size": "auto"})
THREAD_COUNTS = placement.thread_counts


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Two cores, nothing measured yet, and no other load."""
    monkeypatch.setattr(placement, "thread_counts", lambda: [1, 2])
    monkeypatch.setattr(clock, "load", lambda: 0.0)
    monkeypatch.setattr(clock, "TURN", 0.002)
    monkeypatch.setattr(placement, "BRIEFEST", 0.0)


@pytest.fixture
def reader(virtual):
    """Makes a linear net that takes `slow(number of samples)` seconds of the virtual clock."""

    def make(slow):
        def forward(module, inputs):
            virtual.now += slow(len(inputs[0]))

        net = linear(4, 2)
        net.register_forward_pre_hook(forward)
        return net

    return make


def place(net, samples, config=None, n_samples=None, **about):
    """The fastest place for a user's net; trains copies of it."""
    n = len(samples[0])
    settings = Settings(batch_size=n) if config is None else config
    build = lambda *_: copy.deepcopy(net)  # noqa: E731
    workload = Workload("own", settings, n_samples or n, build, lambda config: samples, Classification())
    return placement.place(workload, **about)


def batch(n=8):
    return torch.linspace(-1, 1, 4 * n).reshape(n, 4), torch.arange(n) % 2


# --- the decision ---------------------------------------------------------------------------------


THREADS = [Candidate("cpu", number, 64) for number in (1, 2, 4)]
DEVICES = [*THREADS[:2], Candidate("cuda:0", None, 64)]
SIZES = [Candidate("cpu", 1, size) for size in (16, 32, 64, 128)]


@pytest.mark.parametrize(
    ("choices", "seconds", "errors", "index"),
    [
        (THREADS, (1.2, 1.1, 1.0), (0.05, 0.01, 0.0), 2),
        (THREADS, (1.08, 1.1, 1.0), (0.15, 0.01, 0.0), 0),  # noise: ties go to fewer threads
        (THREADS, (1.2, 1.1, 1.0), (0.15, 0.01, 0.0), 2),  # but not beyond 10 %
        (THREADS, (1.09, 1.045, 1.0), (), 1),  # ties are not chained
        (THREADS, (None, 1.1, 1.0), (), 2),  # a failed one
        (DEVICES, (1.5, 1.03, 1.0), (), 1),  # ties go to the CPU
        (SIZES, (4.0, 1.09, 1.0, 0.995), (), 1),  # the smallest one within 10 % of the best
        (SIZES, (4.0, 3.0, 2.0, None), (), 2),
        (SIZES, (None, None, None, None), (), 0),
    ],
)
def test_the_simplest_choice_that_is_not_clearly_slower_wins(choices, seconds, errors, index):
    both = itertools.zip_longest(choices, seconds, errors)
    laps = {one.name: Lap(took, error) for one, took, error in both}
    assert placement.decide(choices, laps) == choices[index]


def test_candidates_are_all_that_the_settings_leave_open(monkeypatch):
    usable = [torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "mps")]
    monkeypatch.setattr(placement.device, "usable_devices", lambda: usable)
    fixed = Settings(batch_size=32)

    def names(device="auto", threads: Any = "auto", config=fixed):
        return [one.name for one in placement.candidates(device, threads, config, 1300)]

    assert names() == [
        "cpu on 1 thread, batch 32", "cpu on 2 threads, batch 32", "cuda:0, batch 32", "mps, batch 32",
    ]  # fmt: skip
    assert names("cpu", 3) == ["cpu on 3 threads, batch 32"]
    assert names(config=Settings(batch_size=32, precision="float16"))[0] == "cuda:0, batch 32"
    assert [name.split()[-1] for name in names("cpu", 1, AUTO)] == ["16", "32", "64"]


def test_the_number_of_threads_follows_physical_cores(monkeypatch):
    monkeypatch.setattr(placement, "torch", SimpleNamespace(get_num_threads=lambda: 12))
    monkeypatch.setattr(machine, "cores", lambda: 16)
    for physical, expected in ((8, [1, 4, 8]), (1, [1]), (2, [1, 2]), (None, [1, 6, 12])):
        monkeypatch.setattr(psutil, "cpu_count", lambda logical, number=physical: number)
        assert THREAD_COUNTS() == expected


# --- the race -------------------------------------------------------------------------------------


def test_a_slow_number_of_threads_is_avoided_and_the_net_is_unchanged(monkeypatch, reader):
    """Dropout draws random numbers, which must not change global generators."""
    net = reader(lambda n: 0.03 if torch.get_num_threads() == 1 else 0.001)
    before = copy.deepcopy(net.state_dict())
    choice = place(nn.Sequential(net, nn.Dropout(0.5)), batch(), **ON_CPU)
    assert (choice.device, choice.threads, choice.batch_size) == ("cpu", 2, 8)
    assert same(net.state_dict(), before) and all(weight.grad is None for weight in net.parameters())
    assert choice.rows[0]["candidate"] == (first := "cpu on 2 threads, batch 8")
    assert re.fullmatch(rf"{first}: [\d,]+ samples/s; cpu on .* times that.", choice.sentence)
    monkeypatch.setattr(placement, "BRIEFEST", 1.0)  # a training of 0.6 s allows no race
    assert [place(net, batch(), trainings=n, **ON_CPU).threads for n in (1, 100)] == [1, 2]


def refusing(most):
    """Runs out of memory above this many samples, as a GPU does."""

    def slow(n):
        if n > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 0.004

    return slow


def test_the_fastest_batch_size_that_fits_is_chosen(reader):
    choice = place(reader(refusing(32)), batch(), AUTO, threads=1, n_samples=128 * 20, **ON_CPU)
    assert choice.sentence.startswith("cpu on 1 thread, batch 32: ") and choice.batch_size == 32
    assert {row["why"] for row in choice.rows} == {"", "CUDA out of memory. Tried to allocate 2.00 GiB."}


def test_heavy_nets_are_timed_with_few_samples_and_too_large_ones_never(reader):
    seen: list[int] = []
    heavy = place(reader(lambda n: seen.append(n) or 0.004 * n), batch(64), **ON_CPU)
    assert max(seen) < 64 == heavy.batch_size and heavy.sentence.endswith(f". Timed at batch {max(seen)}.")
    calls = place(reader(lambda n: seen.append(n) or 0.001), batch(2048), **ON_CPU)
    assert max(seen) == 2048 and "Timed at" not in calls.sentence, "it takes no longer than a small one"
    fails = reader(lambda n: 0.001 if n < 65 or torch.get_num_threads() == 2 else 1 / 0)
    on_two = place(fails, batch(512), **ON_CPU)
    assert on_two.threads == 2, "one thread fails, only at full size"
    none = place(reader(refusing(0)), batch(), **ON_CPU)
    assert none.threads == 1 and "nothing could be measured, so this is the simplest" in none.sentence


def test_a_batch_size_that_does_not_fit_is_not_tried(monkeypatch, reader):
    """On a CPU the process itself would be killed."""
    held = [0]  # a megabyte per sample
    monkeypatch.setattr(machine, "memory", lambda: (64 * 10**6, 64 * 10**6))
    monkeypatch.setattr(placement.held, "reset_peak", lambda place: held.append(0))
    monkeypatch.setattr(placement.held, "peak_on", lambda place: 10**6 * held[-1])
    slow = lambda n: held.append(n) or 0.001  # noqa: E731
    choice = place(reader(slow), batch(), AUTO, threads=1, n_samples=1024 * 20, **ON_CPU)
    assert choice.batch_size in {*held} == {0, 16, 32}, "64 samples would take all memory"


# --- runs -----------------------------------------------------------------------------------------

HERE = {"controls": [], "threads": "auto", "backend": "batched"}


@pytest.fixture
def tiny(pictures, tmp_path, monkeypatch):
    """Opens a tiny run with brief races, which end in the last choice: `tiny(epochs=1)`."""
    right, usable = placement.place, [torch.device("cpu")]
    monkeypatch.setattr(placement.device, "usable_devices", lambda: usable)
    monkeypatch.setattr(placement, "place", lambda *args, **named: right(*args, **named, seconds=0.05))
    monkeypatch.setattr(placement, "decide", lambda ways, laps: ways[-1])
    given = {**TINY, **HERE, "data_dir": str(pictures)}
    return lambda **settings: runs.open_run(tmp_path / "run", "folder_quanv", **given | settings)


@pytest.fixture
def raced(monkeypatch):
    """A list that grows with every race."""
    races, right = [], placement.timed
    monkeypatch.setattr(placement, "timed", lambda *args: races.append(1) or right(*args))
    return races


def note(run):
    return json.loads((run.folder / "provenance.json").read_text())["placement"]


def test_a_resumed_run_is_trained_where_it_was(tiny, raced, monkeypatch):
    run, seen = tiny(), []
    watch = each_epoch(lambda row: seen.append(torch.get_num_threads()) or 1 / (len(seen) - 1))
    with pytest.raises(ZeroDivisionError):
        list(runs.train_all(run, on_row=watch))
    old = note(run)
    assert (old["device"], old["threads"], old["batch_size"], len(raced)) == ("cpu", 2, 4, 1)
    assert old["sentence"].startswith("cpu on 2 threads, batch 4: ")
    monkeypatch.setattr(placement, "decide", lambda ways, laps: ways[0])  # what a race would give now
    again = tiny()
    list(runs.train_all(again, on_row=watch))
    assert (len(raced), note(again), {*seen}) == (1, old, {2})
    trained = again.provenance["trained"]
    assert [trained[name] for name in ("threads", "sentence", "backend")] == [2, old["sentence"], "batched"]


def test_a_batch_size_is_kept_and_the_rest_is_decided_per_machine(tiny, raced, monkeypatch):
    monkeypatch.setattr(placement, "SMALLEST", 2)
    monkeypatch.setattr(placement, "UPDATES", 2)  # 14 images: batches of 2 and 4
    run = tiny(batch_size="auto")
    written = json.loads((run.folder / "config.json").read_text())["batch_size"]
    assert {written, run.provenance["batch_size"], run.config.batch_size, note(run)["batch_size"]} == {4}
    monkeypatch.setattr(placement, "decide", lambda ways, laps: ways[0])
    assert tiny(batch_size="auto").config == run.config == runs.open_run(run.folder).config
    for damaged in ({"batch_size": 1}, [], None):  # whatever happens to the note
        run.note_provenance(placement=damaged)
        assert runs.open_run(run.folder).config == run.config and runs.placed(run).batch_size == 4
    with pytest.raises(ValueError, match="batch_size: 4 in the folder, 2 now"):
        tiny(batch_size=2)
    raced.clear()
    monkeypatch.setattr(survey, "facts", lambda: {"name": "another"})
    assert runs.placed(run).batch_size == runs.placed(tiny()).batch_size == 4
    assert len(raced) == 1 and note(run)["machine"]["name"] == "another"
    assert runs.placed(tiny(threads=1)).sentence.startswith("cpu on 1 thread: the only choice here")
    runs.placed(tiny())
    assert len(raced) == 2


def test_a_run_with_several_processes_measures_nothing(tiny, monkeypatch):
    run = tiny()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert runs.placed(run).sentence == "cpu: 2 processes take equal shares, so nothing was measured."
    assert runs.placed(run).threads is None and "placement" not in run.provenance


# --- accelerators ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_takes_part_in_the_race():
    wide = nn.Sequential(linear(4, 4096), nn.ReLU(), linear(4096, 4096), nn.ReLU(), linear(4096, 2))
    choice = place(wide, batch(512), seconds=5)
    raced = {row["candidate"] for row in choice.rows}
    assert choice.device == "cuda:0" and raced >= {"cpu on 1 thread, batch 512", "cuda:0, batch 512"}
