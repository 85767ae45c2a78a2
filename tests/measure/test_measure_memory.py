"""qnnkit.measure: traced and predicted numbers of a training agree with a real run."""

import functools
import gc
import importlib
import time

import pytest
import torch

from benchmarks.predicting import transformer
from qnnkit import measure, recipes, runs, tasks, train
from qnnkit.data.splits import SPLITS
from qnnkit.measure import platforms
from qnnkit.measure.memory import Ledger, trace
from qnnkit.measure.platforms import HERE, Spot
from qnnkit.models.causal_lm import LLAMA, without_weights
from qnnkit.settings import Settings
from tests.toys import linear, refused

predicting = importlib.import_module("qnnkit.measure.predict")  # not the function of that name
planning = importlib.import_module("qnnkit.measure.plan")
TINY = {"batch_size": 2, "optimizer": "adamw"}


@functools.cache
def digits():
    return runs.to_plan("digits_quanv", timed=False)["workload"]


@functools.cache
def llama(size="small", **settings):
    return transformer("llama", size, 1000, **{**TINY, "sequence_length": 32, **settings})


@functools.cache
def clip():
    return transformer("clip", "tiny", 1000, **TINY)


@functools.cache
def seen(workload, **change):
    """The trace of a changed workload, made once for all tests."""
    return trace(workload().change(**change))


def measured_peak(workload):
    """Peak bytes of tensors in a real step, by the same ledger on tensors with memory."""
    ledger, stepper = Ledger(), workload.stepper()
    for tensor in (*stepper.model.parameters(), *stepper.model.buffers()):
        ledger.add(tensor, "weights")
    with ledger:
        stepper(workload.batch())
        ledger.begin()
        stepper(workload.batch())
    return ledger.peak.total()


CHECKPOINTED = {"batch_size": 8, "gradient_checkpointing": True}


@pytest.mark.parametrize(
    ("workload", "change", "more"),
    [
        (digits, {"batch_size": 64}, 1.02),
        (llama, {"batch_size": 4, "micro_batch": 2}, 1.02),
        (clip, {"precision": "bfloat16", "optimizer": "sgd", "lora_rank": 4}, 1.02),
        (llama, CHECKPOINTED, 1.2),  # fake tensors of a recomputed part are freed a little later
    ],
)
def test_a_traced_step_holds_as_much_as_a_real_one(workload, change, more):
    real = measured_peak(workload().change(**change))
    assert 0.98 < sum(seen(workload, **change).memory.values()) / real < more


def test_a_users_net_whose_task_counts():
    """Values are unknown but not needed: a task may divide by a count."""

    def task(model, batch):
        count = int((batch[1] > 0).sum())
        return tasks.Step(model(batch[0]).square().sum() / max(1, count), {}, count)

    def selects(model, batch):
        return tasks.Step(model(batch[0])[batch[1] > 0.5].sum(), {}, 1)

    rows, net = (torch.ones(64, 100), torch.ones(64, 300)), linear(100, 300)
    about = Settings(batch_size=32), 500, lambda config, traced: net, lambda config: rows
    workload = measure.Workload("own", *about, task, example=rows[0])
    needs = trace(workload)
    assert needs.n_trained == 300 * 101
    assert sum(needs.memory.values()) == pytest.approx(measured_peak(workload), rel=0.02)
    with refused("task"):
        trace(measure.Workload("own", *about, selects))


def test_torchs_own_tracker_agrees():
    """MemTracker, by its public names, on a step without frozen weights, which it cannot handle."""
    from torch.distributed._tools.mem_tracker import MemTracker

    workload = llama()
    stepper = workload.stepper()
    stepper(workload.batch())  # creates the moments
    tracker = MemTracker()
    tracker.track_external(stepper.model, stepper.optimizer)
    with tracker:
        stepper(workload.batch())
    [peak] = tracker.get_tracker_snapshot("peak").values()
    assert sum(seen(llama).memory.values()) == pytest.approx(peak["Total"], rel=0.01)


def test_parts_of_the_memory_have_the_right_sizes():
    needs = seen(llama, batch_size=4, micro_batch=2)
    weights = 4 * needs.n_weights
    assert weights <= needs.memory["weights"] <= weights + 4096, "the weights, and a few buffers"
    assert needs.memory["optimizer"] == pytest.approx(2 * weights, rel=0.01), "two moments"
    assert needs.memory["gradients"] == weights, "of the first batch, at the peak of the second"
    assert needs.memory["activations"] > 0 and not needs.memory.get("quantum states")
    few, many = (seen(digits, batch_size=n).memory["quantum states"] for n in (64, 512))
    assert 7 < many / few < 9, "eight times as many circuits"
    assert many > 512 * 49 * 2**4 * 2 * 4, "49 states of four wires an image, in real and imaginary parts"


def test_work_grows_with_the_batch_and_with_its_pieces():
    changes = {}, {"batch_size": 8}, {"batch_size": 6, "micro_batch": 2}
    one, four, three = (seen(llama, **each).work for each in changes)
    assert (four.flops, three.flops) == pytest.approx((4 * one.flops, 3 * one.flops), rel=0.01)
    assert one.bytes < four.bytes < 4 * one.bytes, "moments and weights are moved only once"
    assert 2 * one.bytes < three.bytes < 3 * one.bytes
    tokens, n = 2 * 32, seen(llama).n_weights
    assert 0.5 < one.flops / (6 * tokens * n) < 1.5, "Kaplan et al. (2020), arXiv:2001.08361"
    usual, again = seen(llama, batch_size=8), seen(llama, **CHECKPOINTED)
    assert again.memory["activations"] < 0.7 * usual.memory["activations"]
    assert 1.1 * usual.work.flops < again.work.flops < 1.4 * usual.work.flops, "one more forward pass"
    # Products of attention grow with the square of the length, the others with the length.
    short, long = (seen(llama, sequence_length=n).work.flops for n in (32, 512))
    per_pair = 14 * 64 * 2  # 64 wide, 2 layers: two products forward, five backward: 2 operations each
    extra = 2 * (512**2 - 16 * 32**2)  # tokens squared, two samples
    assert long - 16 * short == pytest.approx(per_pair * extra, rel=0.01)


def test_large_models_are_traced_without_memory(monkeypatch):
    count = sum(weight.numel() for weight in without_weights("3b").parameters())
    assert 3.2e9 < count < 3.25e9, "as Llama 3.2 3B is published"
    monkeypatch.setitem(LLAMA, "3b", (3072, 6, 24, 8, 8192, 128256))
    measure.reset_peak(torch.device("cpu"))
    before, frozen, begin = measure.resident(), gc.get_freeze_count(), time.process_time()
    needs = trace(llama("3b", lora_rank=8, sequence_length=2048))
    assert time.process_time() - begin < 10, "on one core; 1 s was measured"
    assert gc.get_freeze_count() >= frozen > 0, "a frozen heap stays frozen"
    if measure.held.CLEAR.exists():  # other systems never reset a peak
        assert measure.peak() - before < 1e9, "its weights alone would take 4 GB"
    assert needs.n_weights > 9e8 and needs.memory["weights"] == pytest.approx(4 * needs.n_weights, rel=0.01)
    assert needs.n_trained < 1e-3 * needs.n_weights and needs.memory["optimizer"] < 2**25


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 4), ("sgd", 2)])
def test_a_gpu_updates_all_weights_at_once(optimizer, copies):
    """If little else is held, the update is the peak: the prediction equals the trace."""
    workload = llama(sequence_length=4, optimizer=optimizer, weight_decay=0.01)
    usual, together = trace(workload), trace(workload, foreach=True)
    assert usual.at_update == pytest.approx(sum(together.memory.values()), rel=0.01)
    assert usual.at_update == pytest.approx(usual.memory["weights"] + 4 * copies * usual.n_weights, rel=0.01)


def test_values_computed_once_stay_in_memory():
    config = recipes.settings("digits_quanv", trainable=False)
    splits = recipes.of(config).load(config)
    frozen, n = measure.of_recipe(config, splits), sum(len(splits.split(name)) for name in SPLITS)
    assert frozen.loaded_bytes == n * (64 + 8)  # one byte per pixel, and the label
    assert frozen.data_bytes - frozen.loaded_bytes == n * 4 * 4 * 49
    assert not trace(frozen).memory.get("quantum states"), "no circuits run in training"


# --- a whole training ---------------------------------------------------------------------------------------


def test_checkpoints_use_the_predicted_disk_space(tmp_path):
    workload = llama().change(epochs=4, batch_size=8, lora_rank=64)
    model, config = workload.build(workload.training, False), workload.training
    loaders = {split: workload.loader(1) for split in ("train", "validation")}
    train.fit(model, workload.task, loaders, config, groups=workload.groups(model, config), folder=tmp_path)
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoint-*")]
    result, more = measure.predict(workload, measured=False), 2**16  # names and random states
    assert result.checkpoint < max(sizes) < result.checkpoint + more and result.checkpoint > 5 * more
    assert len(sizes) <= config.keep_checkpoints + 1 and sum(sizes) < result.disk + 3 * more


def test_predictions_add_up(monkeypatch):
    workload = digits()
    result = measure.predict(workload, seconds=0.1, n_threads=1)
    assert result.peak == result.in_all == sum(result.memory.values()) > result.on_accelerator > 0
    assert result.memory["framework"] > 100 * 2**20 and result.memory["data"] == workload.data_bytes
    assert result.seconds > 0 and result.spread >= 1 and "scaled" not in result.notes[-1]
    monkeypatch.setattr(train, "fit", None)  # runs nothing if only memory is requested
    again = measure.predict(workload, measured=False)
    assert again.seconds is again.seconds_per_epoch is None
    assert {*again.memory} == {*result.memory} - {"workspace"}


@pytest.mark.parametrize("n_samples", [1000, 4])
def test_memory_of_the_timing_itself_is_not_counted_twice(n_samples):
    """Weights of the best epoch, without a folder, or a checkpoint's copy, which a training counts."""
    rows = torch.ones(8, 3000), torch.zeros(8, dtype=torch.long)
    config = Settings(batch_size=2, optimizer="sgd", learning_rate=1e-6)
    about = (lambda *_: linear(3000, 3000), lambda config: rows, tasks.Classification())
    result = measure.predict(measure.Workload("", config, n_samples, *about, example=rows[0]), seconds=0.1)
    assert result.memory["weights"] > 3.5e7 and result.memory["checkpoint"] > 3.5e7
    assert result.memory["workspace"] < 0.5 * result.memory["weights"]


def test_a_batch_that_does_not_fit_is_timed_at_a_smaller_size(monkeypatch):
    workload = digits().change(batch_size=4)
    for free, size in ((1.8 * sum(trace(workload).memory.values()), 2), (0, 0)):
        monkeypatch.setattr(predicting, "free", lambda device, free=free: free)
        result = measure.predict(workload, seconds=0.1, n_threads=1)
        assert (result.seconds is None) == (size == 0)
        assert any("with 2 samples at a time" in note for note in result.notes) == (size == 2)


def test_each_remedy_for_tight_memory_is_traced(monkeypatch):
    workload = llama(batch_size=64)
    plain, four = (seen(llama, batch_size=64, **each) for each in ({}, {"micro_batch": 16}))
    spot = Spot(HERE, "cpu", int(0.9 * (plain.held + plain.copied) + measure.resident()))
    monkeypatch.setattr(platforms, "this_machine", lambda *args: spot)
    plan = measure.plan(workload, device="cpu", measure=False)
    rows = {each["command"].removeprefix("--set "): each for each in plan.remedies}
    first, last = ["micro_batch=16", "gradient_checkpointing=true"], ["precision=bfloat16", "batch_size=32"]
    assert list(rows) == first + last
    for each in plan.remedies:
        assert each["fits"] == (each["needs"] <= planning.FULL * spot.usable) and each["slow"] is None
    less = plan.places[0]["needs"] - rows["micro_batch=16"]["needs"]
    assert less == plain.held + plain.copied - four.held - four.copied > 0
    assert "--set micro_batch=16" in str(plan)
