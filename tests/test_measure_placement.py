"""Where a net is trained: what is measured faster by more than the noise, and kept by its run alone."""

from __future__ import annotations

import copy
import itertools
import json
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from qnnkit import runs, workspace
from qnnkit.device import machine
from qnnkit.measure import Lap, Workload, placement
from qnnkit.measure import clock as clock_
from qnnkit.measure.placement import Candidate
from qnnkit.runs import chain
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.same import same
from tests.toys import each_epoch, linear

TASK = Classification()
ON_CPU: dict[str, Any] = {"device": "cpu", "seconds": 0.5}
AUTO = Settings().model_copy(update={"batch_size": "auto"})
THREAD_COUNTS = placement.thread_counts


@pytest.fixture
def clock(monkeypatch):
    """Goes on by what nets say that they take, so that no other work on this machine decides a test."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(clock_, "time", SimpleNamespace(perf_counter=lambda: found.now))
    monkeypatch.setattr(Net, "clock", found)
    return found


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Two cores, nothing measured yet, and nobody else at work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QNNKIT_HOME", raising=False)
    monkeypatch.setattr(placement, "thread_counts", lambda: [1, 2])
    monkeypatch.setattr(clock_, "load", lambda: 0.0)
    monkeypatch.setattr(clock_, "TURN", 0.002)
    monkeypatch.setattr(placement, "BRIEFEST", 0.0)


class Net(nn.Module):
    """A linear reader that takes `slow(number of samples)` seconds of the clock."""

    clock = SimpleNamespace(now=0.0)

    def __init__(self, slow=lambda n: 0.001):
        super().__init__()
        self.reader, self.slow = linear(4, 2), slow

    def forward(self, points):
        self.clock.now += self.slow(len(points))
        return self.reader(points)


def slow_on(threads, seconds=0.03):
    return lambda n: seconds if torch.get_num_threads() == threads else 0.001


def place(net, samples, config=None, n_samples=None, **about):
    """Where a net of a user's own is trained fastest; copies of it are trained."""
    n = len(samples[0])
    own = Settings(batch_size=n) if config is None else config
    workload = Workload(
        "own", own, n_samples or n, lambda *_: copy.deepcopy(net), lambda config: samples, TASK
    )
    return placement.place(workload, **about)


def batch(n=8):
    return torch.linspace(-1, 1, 4 * n).reshape(n, 4), torch.arange(n) % 2


# --- the decision ---------------------------------------------------------------------------------


def on(threads, size=64, device="cpu"):
    return Candidate(device, threads, size)


def decided(found, seconds, errors=()):
    both = itertools.zip_longest(found, seconds, errors)
    return placement.decide(found, {one.name: Lap(took, error) for one, took, error in both})


THREADS = [on(1), on(2), on(4)]
DEVICES = [on(1), on(2), on(None, device="cuda:0")]
SIZES = [on(1, size) for size in (16, 32, 64, 128)]


@pytest.mark.parametrize(
    ("found", "seconds", "errors", "index"),
    [
        (THREADS, (3.0, 2.0, 1.0), (), 2),
        (THREADS, (1.0, 2.0, 3.0), (), 0),
        (THREADS, (1.2, 1.1, 1.0), (0.15, 0.01, 0.0), 0),  # noise: ties go to fewer threads
        (THREADS, (None, 1.1, 1.0), (), 2),  # one that failed
        (DEVICES, (1.5, 1.03, 1.0), (), 1),  # and to the CPU
        (DEVICES, (1.5, 1.2, 1.0), (), 2),
        (SIZES, (4.0, 1.09, 1.0, 0.995), (), 1),  # the smallest within 10 % of the best
        (SIZES, (1.0, 1.2, 1.3, 1.4), (), 0),
        (SIZES, (4.0, 3.0, 2.0, None), (), 2),
        (SIZES, (None, None, None, None), (), 0),
    ],
)
def test_the_simplest_that_is_not_clearly_slower(found, seconds, errors, index):
    assert decided(found, seconds, errors) == found[index]


def test_candidates_are_what_the_settings_leave_open(monkeypatch):
    usable = [torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "mps")]
    monkeypatch.setattr(placement.device, "usable_devices", lambda: usable)
    fixed = Settings(batch_size=32)

    def names(device="auto", threads: Any = "auto", config=fixed, n=None):
        return [one.name for one in placement.candidates(device, threads, config, n)]

    assert names() == [
        "cpu on 1 thread, batch 32", "cpu on 2 threads, batch 32", "cuda:0, batch 32", "mps, batch 32",
    ]  # fmt: skip
    assert names("cpu", 3) == ["cpu on 3 threads, batch 32"]
    assert names("cpu", None) == ["cpu, batch 32"]
    assert names(config=Settings(batch_size=32, precision="float16"))[0] == "cuda:0, batch 32"
    assert [name.split()[-1] for name in names("cpu", 1, AUTO, 1300)] == ["16", "32", "64"]
    with pytest.raises(ValueError, match=r"`precision` must suit the device, but is 'float16 on cpu'"):
        names("cpu", config=Settings(precision="float16"))
    with pytest.raises(ValueError, match="`device` must be a known name, but is 'gpu'"):
        names("gpu")


def test_threads_are_of_physical_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(placement, "torch", SimpleNamespace(get_num_threads=lambda: 12))
    monkeypatch.setattr(machine, "cores", lambda: 16)
    for physical, expected in ((8, [1, 4, 8]), (1, [1]), (2, [1, 2]), (None, [1, 6, 12])):
        monkeypatch.setattr(psutil, "cpu_count", lambda logical, found=physical: found)
        assert THREAD_COUNTS() == expected


def test_no_size_of_batch_leaves_one_image_over():
    assert placement.sizes(1073) == [32]  # 1073 = 67 * 16 + 1
    assert placement.sizes(1089) == [15]  # 1089 = 68 * 16 + 1 = 34 * 32 + 1 = 64 * 17 + 1
    assert [placement.sizes(n) for n in (33, 49, 65, 273)] == [[17], [17], [17], [15]]
    assert placement.sizes(1090) == [16, 32]


# --- the race -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow", "best"), [(1, 2), (2, 1)])
def test_a_planted_slow_number_of_threads_is_found(slow, best, clock):
    net, torch_rng = Net(slow_on(slow)), torch.get_rng_state()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = place(nn.Sequential(net, nn.Dropout(0.5)), batch(), **ON_CPU)
    assert torch.equal(torch.get_rng_state(), torch_rng), "dropout has drawn, and nothing outside knows"
    assert (found.device, found.threads, found.batch_size) == ("cpu", best, 8)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(weight.grad is None for weight in net.parameters())
    [first, *_] = found.rows
    assert first["candidate"] == f"cpu on {best} thread{'s' * (best > 1)}, batch 8"


def test_a_heavy_net_is_raced_on_smaller_batches(clock):
    sizes = []

    def slow(n):
        sizes.append(n)
        return 0.004 * n

    found = place(Net(slow), batch(64), Settings(batch_size=64), **ON_CPU)
    assert max(sizes) < 64 and found.batch_size == 64
    assert found.sentence.endswith(f". Timed at batch {max(sizes)}.")


@pytest.mark.parametrize(
    ("slow", "size"),
    [
        (lambda n: 0.004, 128),  # as long for any number: the more the better
        (lambda n: 0.0002 * n, 16),  # as long for every sample
        (lambda n: 0.0005 + 0.0002 * max(n, 32), 32),
    ],
)
def test_the_size_of_batch_is_the_smallest_of_the_best(slow, size, clock):
    found = place(Net(slow), batch(), AUTO, threads=1, n_samples=128 * 20, **ON_CPU)
    assert found.batch_size == size
    assert found.sentence.startswith(f"cpu on 1 thread, batch {size}: ")


class Refusing(Net):
    """As a GPU does: more than `most` samples are out of memory."""

    def __init__(self, most):
        super().__init__(lambda n: 0.004)
        self.most = most

    def forward(self, points):
        if len(points) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(points)


def test_out_of_memory_rules_a_size_out(clock):
    found = place(Refusing(32), batch(), AUTO, threads=1, n_samples=128 * 20, **ON_CPU)
    assert found.batch_size == 32
    assert {row["why"] for row in found.rows} >= {"", "CUDA out of memory. Tried to allocate 2.00 GiB."}


def test_a_size_that_would_not_fit_is_not_tried(monkeypatch, clock):
    """On a CPU nobody would be left to tell of it."""
    held, tried = [0], set()
    monkeypatch.setattr(machine, "memory", lambda: (64 * 10**6, 64 * 10**6))
    monkeypatch.setattr(placement.held, "reset_peak", lambda place: held.append(0))
    monkeypatch.setattr(placement.held, "peak_on", lambda place: held[-1])

    class Wide(Net):
        def forward(self, points):
            tried.add(len(points))
            held.append(10**6 * len(points))
            return super().forward(points)

    found = place(Wide(), batch(), AUTO, threads=1, n_samples=1024 * 20, **ON_CPU)
    assert found.batch_size in tried == {16, 32}, "64 samples would take all there is"


def test_where_no_choice_fits_the_simplest_is_left_to_the_training():
    found = place(Refusing(0), batch(), **ON_CPU)
    told = "cpu on 1 thread, batch 8: nothing could be measured, so this is the simplest choice, not the "
    assert (found.threads, found.sentence) == (1, f"{told}fastest.")


# --- the sentence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "busy", "told"), [(0.002, None, "0.50 times that."), (None, "Busy.", "not timed. Busy.")]
)
def test_the_sentence_word_for_word(monkeypatch, second, busy, told):
    laps = {on(n, 8).name: Lap(took) for n, took in ((1, 0.001), (2, second))}
    monkeypatch.setattr(placement, "timed", lambda *given: (laps, None, busy))
    begin = "cpu on 1 thread, batch 8: 1,000 samples/s; cpu on 2 threads, batch 8: "
    assert place(Net(), batch(), device="cpu").sentence == begin + told


def test_nothing_is_measured_where_there_is_no_choice(monkeypatch):
    monkeypatch.setattr(clock_, "race", None)
    net = Net()
    assert place(net, batch(), device="cpu", threads=2).sentence == (
        "cpu on 2 threads: the only choice here, so nothing was timed."
    )
    monkeypatch.setattr(placement, "thread_counts", lambda: [1])
    monkeypatch.setattr(placement.device, "usable_devices", lambda: [torch.device("cpu")])
    found = place(net, batch(), Settings())
    assert (found.device, found.threads, found.rows) == ("cpu", 1, [])


def counted(monkeypatch):
    """A list that grows with every race."""
    raced, own = [], placement.timed
    monkeypatch.setattr(placement, "timed", lambda *given: raced.append(1) or own(*given))
    return raced


def test_what_a_busy_machine_measures_is_said_and_never_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "cores", lambda: 2)
    for load in (1.3, 0.0):
        monkeypatch.setattr(clock_, "load", lambda load=load: load)
        told = place(Net(), batch(), **ON_CPU).sentence
        assert (" The machine is busy: other programs use 1.3 of its 2 cores, " in told) == (load > 1)
    assert list(tmp_path.iterdir()) == []


# --- runs -----------------------------------------------------------------------------------------

TINY = {
    "image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "epochs": 2, "n_seeds": 1,
    "controls": ["classical"], "threads": "auto", "backend": "batched",
}  # fmt: skip


@pytest.fixture
def tiny(pictures, tmp_path, monkeypatch):
    """Opens a tiny run, whose races take a moment: `tiny(name, epochs=1)`."""
    usable = [torch.device("cpu")]
    monkeypatch.setattr(placement.device, "usable_devices", lambda: usable)
    own = placement.place
    monkeypatch.setattr(placement, "place", lambda *given, **named: own(*given, **named, seconds=0.05))

    def open_(name="run", **settings):
        given = {"data_dir": str(pictures), **TINY, **settings}
        return runs.open_run(tmp_path / name, "folder_quanv", **given)

    return open_


def note(run):
    return json.loads((run.folder / "provenance.json").read_text())["placement"]


def test_a_run_is_trained_where_it_was_measured_to_be_fastest(tiny, monkeypatch):
    run, seen = tiny(), []
    monkeypatch.setattr(placement, "decide", lambda found, times: found[-1])
    list(runs.train_all(run, on_row=each_epoch(lambda row: seen.append(torch.get_num_threads()))))
    kept = note(run)
    assert (kept["device"], kept["threads"], kept["batch_size"]) == ("cpu", 2, 4) and set(seen) == {2}
    assert kept["sentence"].startswith("cpu on 2 threads, batch 4: ")
    told = run.provenance["trained"]
    assert told["threads"] == 2 and told["sentence"] == kept["sentence"] and told["backend"] == "batched"
    assert runs.placed(run).sentence == kept["sentence"]


def test_a_run_that_goes_on_decides_as_it_did_and_ends_in_the_same_bits(tiny, monkeypatch):
    monkeypatch.setattr(placement, "decide", lambda found, times: found[-1])
    alone = {"controls": []}
    whole, broken = tiny("whole", **alone), tiny("broken", **alone)

    class Killed(Exception):
        pass

    def kill(row):
        raise Killed

    list(runs.train_all(whole))
    with pytest.raises(Killed):
        list(runs.train_all(broken, on_row=each_epoch(kill)))
    monkeypatch.setattr(placement, "decide", lambda found, times: found[0])  # what it would find now
    raced = counted(monkeypatch)
    again = tiny("broken", **alone)
    list(runs.train_all(again))
    assert raced == [] and note(again)["threads"] == 2
    assert same(*(runs.trained(run, "hybrid").state_dict() for run in (whole, again)))


def test_on_another_machine_or_asked_something_else_it_decides_anew(tiny, monkeypatch):
    monkeypatch.setattr(placement, "decide", lambda found, times: found[-1])
    first, raced = runs.placed(tiny()), counted(monkeypatch)
    assert runs.placed(tiny()) == first and first.threads == 2 and raced == [], "as it did"
    assert runs.placed(tiny(threads=1)).sentence.startswith("cpu on 1 thread: the only choice here")
    runs.placed(tiny())
    assert len(raced) == 1
    monkeypatch.setattr(placement, "machine_facts", lambda: {"name": "another"})
    runs.placed(tiny())
    assert len(raced) == 2 and note(tiny())["machine"] == {"name": "another"}
    runs.placed(tiny())
    assert len(raced) == 2


def test_what_is_finished_is_left_as_it_is(tiny, monkeypatch):
    run = tiny()
    list(runs.train_all(run))
    before = note(run)
    monkeypatch.setattr(placement, "machine_facts", lambda: {"processor": "another"})
    list(runs.train_all(run))
    assert note(run) == before
    run.note_provenance(placement=None)
    told = "cpu: it was trained before, so nothing was measured."
    assert runs.placed(run).sentence == told and note(run) is None


def test_a_size_of_batch_is_found_when_the_run_begins_and_kept_everywhere(tiny, monkeypatch):
    monkeypatch.setattr(placement, "SMALLEST", 2)
    monkeypatch.setattr(placement, "UPDATES", 2)  # 14 images: batches of 2 and 4
    monkeypatch.setattr(placement, "decide", lambda found, times: found[-1])
    run = tiny(batch_size="auto")
    kept = json.loads((run.folder / "config.json").read_text())
    assert kept["batch_size"] == run.provenance["batch_size"] == run.config.batch_size == 4
    assert note(run)["batch_size"] == 4
    raced = counted(monkeypatch)
    monkeypatch.setattr(placement, "decide", lambda found, times: found[0])
    assert tiny(batch_size="auto").config == run.config == runs.open_run(run.folder).config
    assert len(list(runs.train_all(run))) == 2 and raced == [], "placed in the same race"
    assert tiny(batch_size=4).config == run.config, "which is what it has"
    with pytest.raises(ValueError, match="batch_size: 4 there, 2 now"):
        tiny(batch_size=2)

    moved = tiny("moved", batch_size="auto")
    monkeypatch.setattr(placement, "machine_facts", lambda: {"processor": "another"})
    found = runs.placed(runs.open_run(moved.folder))
    assert found.batch_size == moved.config.batch_size == 2
    assert runs.open_run(moved.folder).config == moved.config

    forked = runs.fork(moved.folder, moved.folder.parent / "forked", epochs=3)
    assert forked.config.batch_size == 2
    assert runs.fork(moved.folder, forked.folder, epochs=3).config == forked.config


def test_the_size_of_batch_is_kept_whatever_becomes_of_the_note(tiny, monkeypatch):
    monkeypatch.setattr(placement, "SMALLEST", 2)
    run = tiny(batch_size="auto", epochs=1, controls=[])
    found = run.config.batch_size
    assert run.provenance["batch_size"] == found > 1
    for left in ({"batch_size": 1}, {"x": 1}, [], None):
        run.note_provenance(placement=left)
        again = runs.open_run(run.folder)
        assert again.config == run.config and runs.placed(again).batch_size == found
    list(runs.train_all(again))
    longer = runs.open_run(run.folder, epochs=2)
    assert longer.config.batch_size == found and len(list(runs.train_all(longer))) == 1
    facts = run.provenance
    del facts["batch_size"]
    workspace.write_json(run.folder / "provenance.json", facts)
    assert runs.open_run(run.folder).config == longer.config


def test_a_run_of_several_processes_measures_nothing(tiny, monkeypatch):
    run = tiny()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert runs.placed(run).sentence == "cpu: 2 processes take equal shares, so nothing was measured."
    assert runs.placed(run).threads is None and "placement" not in run.provenance


def test_a_run_of_an_earlier_version_still_opens(tiny):
    run = tiny(batch_size=4)
    path = run.folder / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"threads": None}))
    begun = runs.open_run(run.folder)
    assert begun.config.threads is None
    assert runs.placed(begun).sentence == "cpu: the only choice here, so nothing was timed."


def test_a_net_with_features_computed_beforehand_is_raced_on_them(tiny, monkeypatch):
    seen, own = [], placement.timed

    def timed(workload, *given):
        seen.append(workload.batch(4)[0].shape)
        return own(workload, *given)

    monkeypatch.setattr(placement, "timed", timed)
    run = tiny(trainable=False, stride=3, kernel_size=3, controls=["no_quantum"])
    runs.placed(run)
    assert seen == [runs.seen_by(run, runs.build(run, "hybrid", 0)).train.images[:4].shape]
    runs.placed(tiny("changing", trainable=False, stride=3, kernel_size=3, augmentation="affine"))
    assert seen[1] == (4, 1, 6, 6)


def test_the_chain_tells_where_it_trains(tiny):
    run, told = tiny(epochs=1), []
    with chain._followed(run, told.append):
        runs.train_all(run)
    assert told.count(f"      {runs.placed(run).sentence}") == 1 and "best epoch 1" in told[-1]


def test_a_notebook_takes_auto_for_a_size_of_batch():
    path = runs.chain.find_notebook("00_setup")
    runs.chain.check_parameters(path, {"batch_size": "auto"})
    with pytest.raises(TypeError, match="`batch_size` must be of type int, but is 'many'"):
        runs.chain.check_parameters(path, {"batch_size": "many"})
    with pytest.raises(TypeError, match="`epochs` must be of type int, but is 'auto'"):
        runs.chain.check_parameters(path, {"epochs": "auto"})


# --- accelerators ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_raced_too():
    found = place(Net(), batch(), seconds=2)
    assert {"cpu on 1 thread, batch 8", "cuda:0, batch 8"} <= {row["candidate"] for row in found.rows}
    wide = nn.Sequential(linear(4, 4096), nn.ReLU(), linear(4096, 4096), nn.ReLU(), linear(4096, 2))
    assert place(wide, batch(512), seconds=5).device == "cuda:0"
    run_on = place(wide, batch(512), device="cuda", threads="auto")
    assert run_on.sentence == "cuda: the only choice here, so nothing was timed."


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_out_of_memory_rules_a_size_out():
    class Greedy(Net):
        def forward(self, points):
            most = torch.cuda.get_device_properties(0).total_memory
            return super().forward(points) + 0 * torch.empty(len(points) * most // 100, device="cuda")[:1]

    found = place(Greedy(), batch(), AUTO, device="cuda", n_samples=10**6, seconds=2)
    assert found.batch_size == 16, "32 samples would take 1.3 times the memory"


@pytest.mark.mps
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device")
def test_mps_is_raced_too():
    found = place(Net(), batch(), seconds=2)
    assert {"cpu on 1 thread, batch 8", "mps, batch 8"} <= {row["candidate"] for row in found.rows}
