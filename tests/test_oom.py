"""Memory that runs out in training: told in one sentence, or answered by computing batches in parts."""

import json
import re
import sys
from collections import namedtuple

import pytest
import torch
from torch import nn

from qnnkit import runs, train
from qnnkit.data.batches import Batches
from qnnkit.recipes import Recipe
from qnnkit.settings import Settings
from qnnkit.tasks import Classification, Step
from qnnkit.train import in_pieces, out_of_memory
from qnnkit.train.out_of_memory import OutOfMemory
from tests import forked
from tests.same import At, from_seed, raises, same, weights
from tests.toys import typing

SAME = 1e-6  # float32: a mean of means over parts, over a few dozen updates
TASK = Classification()


class Narrow(nn.Module):
    """A net that refuses, as a GPU does, to hold the activations of more than some samples."""

    def __init__(self, most, *, normalised=False, where="forward"):
        super().__init__()
        norm = nn.BatchNorm1d(8) if normalised else nn.Tanh()
        self.inner = from_seed(lambda: nn.Sequential(nn.Linear(2, 8), norm, nn.Linear(8, 2)))
        self.most, self.where, self.sizes = most, where, []

    def forward(self, points):
        self.sizes.append(len(points))
        logits = self.inner(points)
        if len(points) > self.most and self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if len(points) > self.most and torch.is_grad_enabled():
            logits.register_hook(self._fail)
        return logits

    def _fail(self, gradient):
        raise RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB).")


def clouds(n, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 2, generator=generator)
    return points, (points.sum(1) > 1).long()


def loaders(n=45, batch_size=8):
    return {
        name: Batches(*clouds(n, seed), batch_size, shuffle=name == "train")
        for seed, name in enumerate(("train", "validation"))
    }


def fitted(model, *, task=TASK, told=None, folder=None, loaded=None, **settings):
    given = {"epochs": 3, "learning_rate": 0.05} | settings
    tell = None if told is None else told.append
    return train.fit(model, task, loaded or loaders(), Settings(**given), folder=folder, tell=tell)


def close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=SAME)


# --- shrink ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "micro_batch", "kept"),
    [("forward", None, False), ("backward", None, True), ("forward", 5, True), ("backward", 5, False)],
)
def test_the_update_is_the_same_to_rounding(where, micro_batch, kept, tmp_path):
    wide, narrow, told = Narrow(99), Narrow(3, where=where), []
    wide_rows = fitted(wide).rows
    given = {"micro_batch": micro_batch, "on_oom": "shrink", "folder": tmp_path if kept else None}
    progress = fitted(narrow, told=told, **given)
    close(weights(wide), weights(narrow))
    for row, wide_row in zip(progress.rows, wide_rows, strict=True):  # no sample counts twice
        assert row | {"seconds": 0} == pytest.approx(wide_row | {"seconds": 0}, abs=1e-5)
    assert progress.micro_batch == 2 and progress.updates == 3 * 6
    expected = (
        "Memory ran out at epoch 1, batch 0: from here on at most 4 of the 8 samples of a batch are computed "
        "at once, one piece after the other, and their gradients added up. The update, the order of the data "
        "and the schedule stay. Training goes on from its last checkpoint."
    )
    smaller = expected.replace("most 4", "most 2")
    assert told == ([smaller] if micro_batch else [expected, smaller])  # 8 samples in pieces of 5 are 4 and 4
    first = [4] if micro_batch else [8, 4]
    assert narrow.sizes[: len(first)] == first
    assert set(narrow.sizes[len(first) :]) == {1, 2}  # 45 = 5 * 8 + 5 samples


def test_memory_that_runs_out_in_an_epoch_costs_what_came_after_the_last_checkpoint(tmp_path):
    wide, narrow, told = Narrow(99), Narrow(99), []
    loaded = loaders() | {"validation": Batches(*clouds(8, 1), 8, shuffle=False)}
    fitted(wide, loaded=loaded)
    given = {"on_oom": "shrink", "save_every_steps": 2, "folder": tmp_path, "told": told, "loaded": loaded}
    progress = fitted(narrow, task=At(12, lambda: vars(narrow).update(most=4), training=None), **given)
    close(weights(wide), weights(narrow))
    assert told[0].startswith("Memory ran out at epoch 2, batch 4: ") and progress.updates == 18
    assert narrow.sizes[:12] == [8, 8, 8, 8, 8, 5, 8] + [8] * 5  # five of the second epoch; then it fails
    after = narrow.sizes[12:]  # of the second epoch no more than was done, and the first not at all
    assert max(after) == 4 and 13 + 8 + 45 + 8 <= sum(after) <= 45 + 8 + 45 + 8


def test_killed_and_resumed_it_ends_in_the_same_bits(tmp_path):
    straight, fresh, told, given = Narrow(3), Narrow(3), [], {"save_every_steps": 4}
    fitted(straight, on_oom="shrink", folder=tmp_path / "straight", **given)
    killed = At(38, raises(), training=None)
    with pytest.raises(KeyboardInterrupt):
        fitted(Narrow(3), task=killed, on_oom="shrink", folder=tmp_path / "killed", **given)
    progress = fitted(fresh, told=told, on_oom="stop", folder=tmp_path / "killed", **given)
    assert told == [] and progress.micro_batch == 2 and max(fresh.sizes) <= 2  # it remembers
    assert same(weights(fresh), weights(straight))


def test_another_micro_batch_goes_on_with_the_same_training(tmp_path):
    straight, fresh = Narrow(99), Narrow(99)
    fitted(straight)
    with pytest.raises(KeyboardInterrupt):
        fitted(Narrow(99), task=At(14, raises()), folder=tmp_path, save_every_steps=1, micro_batch=4)
    fitted(fresh, folder=tmp_path, micro_batch=1)
    assert set(fresh.sizes) == {1}
    close(weights(straight), weights(fresh))


def test_validation_is_computed_in_parts_too():
    loaded = loaders() | {"validation": Batches(*clouds(45, 1), 24, shuffle=False)}
    wide, narrow, told = Narrow(99), Narrow(8), []
    best = fitted(wide, loaded=loaded).best_score
    progress = fitted(narrow, loaded=loaded, told=told, on_oom="shrink")
    assert progress.best_score == pytest.approx(best, abs=1e-5) and progress.micro_batch == 6
    assert len(told) == 2 and all("ran out at epoch 1, a validation batch:" in each for each in told)
    whole = train.evaluate(narrow, TASK, loaders()["validation"])
    narrow.most = 5
    parts = train.evaluate(narrow, TASK, loaders()["validation"], micro_batch=5)
    assert parts == pytest.approx(whole, abs=SAME)


def test_batch_normalisation_never_meets_a_single_sample_and_is_told_of():
    narrow, trained, told = Narrow(3, normalised=True), [], []
    narrow.register_forward_hook(lambda net, _, logits: trained.extend([len(logits)] * net.training))
    progress = fitted(narrow, on_oom="shrink", told=told)  # 45 = 5 * 8 + 5 samples: 2 + 3, not 1 + 2 + 2
    assert progress.micro_batch == 2 and set(trained[2:]) == {2, 3}  # after 8 and 4
    assert told[0].endswith("checkpoint. Batch normalisation now sees the pieces.")
    with pytest.raises(OutOfMemory, match="8 samples: "):
        fitted(Narrow(1, normalised=True), on_oom="shrink")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_attempt_that_failed_leaves_no_trace_in_statistics_nor_in_random_numbers(where):
    """One refuses whole batches in a first attempt, the other is told from the start what fits."""

    class Dropping(Narrow):
        def __init__(self, most):
            super().__init__(most, normalised=True, where=where)
            self.inner.insert(2, nn.Dropout(0.5))

    late, told = Dropping(4), Dropping(4)
    fitted(late, on_oom="shrink")
    fitted(told, micro_batch=4)
    assert late.inner[1].num_batches_tracked == 3 * 12  # 6 batches an epoch, each of 2 pieces
    assert same(weights(late), weights(told))


# --- stop --------------------------------------------------------------------------------------------------


def test_stop_says_where_and_what_next_and_the_same_call_goes_on(tmp_path):
    straight, model, again = Narrow(99), Narrow(99), Narrow(99)
    fitted(straight)
    with pytest.raises(OutOfMemory) as caught:
        fitted(model, task=At(17, lambda: vars(model).update(most=4), training=None), folder=tmp_path)
    told = r"Memory ran out at epoch 2, batch 4, 8 samples: \d+\.\d\d GB are in use by this process on cpu\. "
    told += "What was saved is whole, and the same command goes on from it with --set on_oom=shrink or --set "
    told += "gradient_checkpointing=true. In another run_dir: a smaller"
    assert re.match(told, str(caught.value)), caught.value
    assert isinstance(caught.value, MemoryError) and caught.value.__context__ is None
    fitted(again, folder=tmp_path)
    assert same(weights(again), weights(straight))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_single_sample_that_does_not_fit_stops(where):
    with pytest.raises(OutOfMemory, match=r"2 samples: .* --set gradient_checkpointing=true\. In another"):
        fitted(Narrow(0, where=where), on_oom="shrink", loaded=loaders(batch_size=2), told=[])
    with pytest.raises(OutOfMemory, match=r"A single sample does not fit\. .* a smaller net"):
        fitted(Narrow(0), on_oom="shrink", gradient_checkpointing=True, loaded=loaders(batch_size=1))


def test_a_batch_that_cannot_be_split_stops():
    class Named(Classification):
        def __call__(self, model, batch):
            return super().__call__(model, batch[:2])

    class WithNames(Batches):
        def __iter__(self):
            for points, labels in super().__iter__():
                yield points, labels, ["a name"] * len(labels)

    loaded = {name: WithNames(*clouds(32, 0), 8, shuffle=False) for name in ("train", "validation")}
    with pytest.raises(OutOfMemory, match="This batch cannot be split, which takes tensors of one length"):
        fitted(Narrow(4), task=Named(), loaded=loaded, on_oom="shrink")


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (torch.optim.SGD, "step", "ran out at epoch 1, batch 0: .* a smaller net"),
        (Narrow, "to", "ran out at the beginning: .* In another run_dir: a smaller net"),
    ],
)
def test_where_smaller_pieces_would_not_help_it_stops(monkeypatch, owner, name, told):
    fail = raises(torch.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(owner, name, lambda *given, **named: fail())
    with pytest.raises(OutOfMemory, match=told):
        fitted(Narrow(99), on_oom="shrink", optimizer="sgd")


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        fitted(Narrow(99), task=At(1, raises(RuntimeError("mat1 and mat2 shapes"))), on_oom="shrink")
    assert not isinstance(caught.value, MemoryError)


@pytest.mark.parametrize(
    ("micro_batch", "processes", "told"),
    [
        (None, 2, "with --set micro_batch=4 or --set"), (3, 2, "with --set micro_batch=1 or --set"),
        (3, 1, "with --set on_oom=shrink or"), (1, 2, "A single sample does not fit."),
        (1, 1, "A single sample"),
    ],
)  # fmt: skip
def test_what_was_tried_already_is_not_proposed(micro_batch, processes, told):
    given = Settings(micro_batch=micro_batch), torch.device("cpu"), processes
    assert told in (sentence := out_of_memory.stopped("the end", 8, *given)), sentence
    assert micro_batch != 1 or ("micro_batch=" not in sentence and "shrink" not in sentence)


SAID = (
    "MPS backend out of memory (MPS allocated: 1 GB, max allowed: 2 GB).",
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
    "unable to mmap 96144 bytes from file <best.safetensors>: Cannot allocate memory (12)",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
)


def test_what_it_sounds_like():
    errors = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), *map(RuntimeError, SAID)]
    assert [error for error in errors if not out_of_memory.ran_out(error)] == []
    assert not out_of_memory.ran_out(RuntimeError("shape")) and not out_of_memory.ran_out(OSError())


# --- batches in pieces --------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "images labels")


@pytest.mark.parametrize("n", [2, 7, 8, 33])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 8])
def test_pieces_are_few_nearly_equal_and_together_everything(n, micro_batch):
    values = torch.arange(n)
    batch = {"pair": Pair(values[:, None].expand(n, 3), [values]), "nothing": None}
    found = in_pieces.pieces(batch, micro_batch)
    lengths = [len(piece["pair"].labels[0]) for piece in found]
    assert len(found) == -(-n // micro_batch)
    assert max(lengths) <= micro_batch and max(lengths) - min(lengths) <= 1
    assert torch.equal(torch.cat([piece["pair"].labels[0] for piece in found]), values)
    assert torch.equal(torch.cat([piece["pair"].images for piece in found]), batch["pair"].images)
    assert all(type(piece["pair"]) is Pair and piece["nothing"] is None for piece in found)


def test_a_tokenizer_s_batch_is_split():
    from transformers import BatchEncoding

    batch = BatchEncoding({"input_ids": torch.arange(12).reshape(6, 2), "attention_mask": torch.ones(6, 2)})
    found = in_pieces.pieces(batch, 3)
    assert [type(piece) for piece in found] == [BatchEncoding] * 2
    assert torch.equal(found[1]["input_ids"], torch.arange(6, 12).reshape(3, 2))


@pytest.mark.parametrize(
    "batch",
    [[torch.ones(3), torch.ones(2)], [torch.ones(3), "abc"], torch.tensor(3.0), [torch.ones(3), 3], [], None],
)
def test_what_cannot_be_split_stays_whole_or_is_refused(batch):
    assert in_pieces.pieces(batch, None)[0] is batch and in_pieces.smaller(batch, None) is None
    with pytest.raises(ValueError, match="`micro_batch` must be None for a batch that cannot be split"):
        in_pieces.pieces(batch, 1)


def test_halving_ends_at_one():
    batch, micro_batch, found = torch.ones(11), None, []
    while (micro_batch := in_pieces.smaller(batch, micro_batch)) is not None:
        found.append(micro_batch)
    assert found == [6, 3, 2, 1]  # 11 samples in pieces of 11, 6, 3 (four pieces), 2, 1


def test_steps_are_joined_by_what_they_count():
    first = Step(torch.tensor(2.0, requires_grad=True), {"loss": torch.tensor(2.0)}, 1)
    joined = in_pieces.joined([first, Step(torch.tensor(4.0), {"loss": torch.tensor(12.0)}, 3)])
    assert joined.loss == 3.5 and joined.sums == {"loss": 14.0} and joined.count == 4
    assert not joined.loss.requires_grad


# --- for real ----------------------------------------------------------------------------------------------

SCRIPT = """
    # A net of which 1,024 samples at once need more than the process may have, and fewer do not.
    import ctypes, json, resource, sys, warnings
    from pathlib import Path
    import torch
    from torch import nn
    from qnnkit import train
    from qnnkit.settings import Settings
    from qnnkit.data.batches import Batches
    from qnnkit.tasks import Classification

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    for option, value in ((-8, 1), (-3, 65536), (-1, 0)):  # one arena, and what is freed goes back at once
        ctypes.CDLL(None).mallopt(option, value)
    folder, (_, hard) = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_DATA)

    def trained(name, size, **settings):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 12_000), nn.Tanh(), nn.Linear(12_000, 2))
        points = torch.rand(1024, 16, generator=torch.Generator().manual_seed(1))
        labels = (points.sum(1) > 8).long()
        loaders = {
            "train": Batches(points, labels, size, shuffle=False),
            "validation": Batches(points[:128], labels[:128], 128, shuffle=False),
        }
        config = Settings(epochs=2, learning_rate=1e-3, optimizer="sgd", **settings)
        told = []

        def lift(moment):  # reading the best checkpoint may need more than training did
            if moment.epoch == moment.epochs and moment.step == moment.steps:
                resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

        try:
            done = train.fit(net, Classification(), loaders, config, folder=folder / name, on_update=lift,
                             tell=told.append)
        except MemoryError as error:
            return {"stopped": str(error)}
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        losses = [row["train_loss"] for row in done.rows]
        return {"told": told, "micro_batch": done.micro_batch, "losses": losses, "weights": weights}

    trained("warm-up", 128)  # what torch and Accelerate load when first used
    used = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(used.split()[1]) + 110_000_000, hard))
    found = {"stop": trained("one", 1024), "shrink": trained("one", 1024, on_oom="shrink")}
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    size = found["shrink"]["micro_batch"]
    found["asked"] = trained("other", 1024, micro_batch=size)
    one, other = (found[name].pop("weights") for name in ("shrink", "asked"))
    found["apart"] = max(float((one[name] - other[name]).abs().max()) for name in one)
    print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds what a process maps on Linux alone")
def test_a_batch_that_really_does_not_fit(tmp_path):
    done = forked.python(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stop"]["stopped"].startswith("Memory ran out at epoch 1, batch 0, 1024 samples: 0.")
    shrunk, asked = found["shrink"], found["asked"]  # begun in the folder of the one that stopped
    assert len(shrunk["told"]) == {512: 1, 256: 2, 128: 3}[shrunk["micro_batch"]]
    assert shrunk["losses"] == pytest.approx(asked["losses"], abs=1e-5) and found["apart"] < SAME


# --- in a run ----------------------------------------------------------------------------------------------

SMALL = {"epochs": 1, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": []}


def narrow_tasks(monkeypatch, most):
    """Every net of a run refuses more than so many images at once."""

    class Refusing(Classification):
        def __call__(self, model, batch):
            if len(batch[0]) > most:
                raise RuntimeError(SAID[1])
            return super().__call__(model, batch)

    monkeypatch.setattr(Recipe, "task", lambda recipe, settings: Refusing(settings.label_smoothing))


def spoken(run):
    """What its machine made a training say."""
    return [row for row in run.rows("metrics") if row["event"] == "warning" and row["of"] == "machine"]


def test_a_run_says_it_remembers_it_and_tests_in_parts(tmp_path, monkeypatch):
    narrow_tasks(monkeypatch, 20)
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL, on_oom="shrink")
    told = []
    [final] = runs.train_all(run, on_warning=told.append)
    assert final["micro_batch"] == 16 and final["test_accuracy"] > 0.1
    [row] = spoken(run)
    assert row["net"] == "hybrid" and told[0] == f"hybrid, seed 0: {row['sentence']}"
    again = runs.open_run(tmp_path / "run")
    assert list(runs.train_all(again)) == [final] and len(spoken(run)) == 1


@pytest.mark.parametrize("when", ["seen_by", "tested"])
def test_a_run_tells_it_before_and_after_the_epochs_too(tmp_path, monkeypatch, when):
    fail = raises(torch.OutOfMemoryError("CUDA out of memory."))
    run = runs.open_run(tmp_path / "run", "digits_quanv", **SMALL)
    with monkeypatch.context() as patch, pytest.raises(OutOfMemory) as caught:
        patch.setattr(runs.trainings, when, lambda *given: fail())
        list(runs.train_all(run))
    sentence = str(caught.value)
    assert sentence.startswith("Memory ran out at net hybrid, seed 0, before or after its epochs: ")
    assert "the same command goes on from it where more is free. In another run_dir: a" in sentence


def test_the_command_tells_it_in_one_sentence(tmp_path, monkeypatch, capfd):
    narrow_tasks(monkeypatch, 20)
    command, words = typing(monkeypatch, capfd), ("train", "--run-dir", tmp_path / "run")
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    status, _, error = command(*words, "--recipe", "digits_quanv", *settings)
    assert status == 2 and error.count("\n") == 1
    assert error.startswith("qnnkit: Memory ran out at epoch 1, batch 0, 32 samples")
    status, out, _ = command(*words, "--set", "on_oom=shrink")
    assert status == 0 and "from here on at most 16 of the 32 samples" in out
    status, _, error = command(*words, "--set", "on_oom=shrinks")
    assert status == 2 and "`on_oom` must be 'stop' or 'shrink'" in error
