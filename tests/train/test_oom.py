"""Memory that runs out in training: one sentence with the remedy, and batches computed in pieces."""

import json
import re
from collections import namedtuple

import pytest
import torch
from torch import nn

from qnnkit import runs, train
from qnnkit.recipes import Recipe
from qnnkit.tasks import Classification, Step
from qnnkit.train import out_of_memory, stepper
from qnnkit.train.out_of_memory import OutOfMemory
from tests.same import At, from_seed, raises, weights
from tests.toys import Batches, typing
from tests.train.test_train import TASK, close, clouds, fit, loaders

SAME = 1e-6  # float32: a mean of means over parts, over a few dozen updates


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


def fitted(model, **given):
    """Six batches an epoch, of which the last has five samples."""
    usual = {"epochs": 3, "learning_rate": 0.05, "data": loaders(45, 8, shuffle=True)}
    return fit(model, **usual | given)


# --- the sentence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "training", "at", "place"),
    [
        ("forward", True, 11, "epoch 2, batch 4"),
        ("backward", True, 11, "epoch 2, batch 4"),
        ("forward", False, 8, "epoch 2, a validation batch"),
    ],
)
def test_it_says_where_and_what_next_and_the_same_call_resumes(tmp_path, where, training, at, place):
    straight, model, again = Narrow(99), Narrow(99, where=where), Narrow(4)
    fitted(straight)
    with pytest.raises(OutOfMemory) as caught:
        fitted(model, task=At(at, lambda: vars(model).update(most=4), training), folder=tmp_path)
    said = "MPS backend out of memory (MPS allocated: 9.0 GB)"
    said = "CUDA out of memory. Tried to allocate 2.00 GiB" if where == "forward" else said
    assert str(caught.value) == (
        f"Memory ran out at {place} ({said}). The same command resumes from the last checkpoint: run it with "
        "--set micro_batch=4 or --set gradient_checkpointing=true. In another run_dir, a smaller net or "
        "batch_size, smaller images or precision=bfloat16 need less."
    )
    assert isinstance(caught.value, MemoryError) and caught.value.__context__ is None
    fitted(again, folder=tmp_path, micro_batch=4)
    close(weights(straight), weights(again), SAME)


class Named(Classification):
    def __call__(self, model, batch):
        return super().__call__(model, batch[:2])


class WithNames(Batches):
    def __iter__(self):
        for points, labels in super().__iter__():
            yield points, labels, ["a name"] * len(labels)


NAMED = {name: WithNames(*clouds(32, 0), 8, shuffle=False) for name in ("train", "validation")}


@pytest.mark.parametrize(
    ("most", "given", "told"),
    [
        (0, {"micro_batch": 3}, r"--set micro_batch=1 or --set gradient_checkpointing=true\."),
        (0, {"micro_batch": 1}, r"run it with --set gradient_checkpointing=true\."),
        (0, {"micro_batch": 2, "gradient_checkpointing": True}, r"run it with --set micro_batch=1\."),
        (0, {"micro_batch": 1, "gradient_checkpointing": True}, "run it where more memory is free"),
        (4, {"task": Named(), "data": NAMED}, r"run it with --set gradient_checkpointing=true\."),
    ],
)
def test_what_is_done_or_would_not_help_is_not_proposed(most, given, told):
    with pytest.raises(OutOfMemory, match=told):
        fitted(Narrow(most), **given)


@pytest.mark.parametrize(
    ("owner", "name", "place"),
    [(torch.optim.SGD, "step", "epoch 1, batch 0"), (Narrow, "to", "the beginning")],
)
def test_outside_of_forward_and_backward_smaller_pieces_are_not_proposed(monkeypatch, owner, name, place):
    fail = raises(torch.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(owner, name, lambda *given, **named: fail())
    with pytest.raises(OutOfMemory, match=f"^Memory ran out at {place} .* run it with --set gradient_ch"):
        fitted(Narrow(99), optimizer="sgd")


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        fitted(Narrow(99), task=At(1, raises(RuntimeError("mat1 and mat2 shapes"))))
    assert not isinstance(caught.value, MemoryError)


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
    found = stepper.pieces(batch, micro_batch)
    lengths = [len(piece["pair"].labels[0]) for piece in found]
    assert len(found) == -(-n // micro_batch)
    assert max(lengths) <= micro_batch and max(lengths) - min(lengths) <= 1
    assert torch.equal(torch.cat([piece["pair"].labels[0] for piece in found]), values)
    assert torch.equal(torch.cat([piece["pair"].images for piece in found]), batch["pair"].images)
    assert all(type(piece["pair"]) is Pair and piece["nothing"] is None for piece in found)


def test_a_tokenizer_s_batch_is_split():
    from transformers import BatchEncoding

    batch = BatchEncoding({"input_ids": torch.arange(12).reshape(6, 2), "attention_mask": torch.ones(6, 2)})
    found = stepper.pieces(batch, 3)
    assert [type(piece) for piece in found] == [BatchEncoding] * 2
    assert torch.equal(found[1]["input_ids"], torch.arange(6, 12).reshape(3, 2))


@pytest.mark.parametrize(
    "batch",
    [[torch.ones(3), torch.ones(2)], [torch.ones(3), "abc"], torch.tensor(3.0), [torch.ones(3), 3], [], None],
)
def test_what_cannot_be_split_stays_whole_or_is_refused(batch):
    assert stepper.pieces(batch, None)[0] is batch
    with pytest.raises(ValueError, match="`micro_batch` must be None for a batch that cannot be split"):
        stepper.pieces(batch, 1)


def test_steps_are_joined_by_what_they_count():
    first = Step(torch.tensor(2.0, requires_grad=True), {"loss": torch.tensor(2.0)}, 1)
    joined = stepper.joined([first, Step(torch.tensor(4.0), {"loss": torch.tensor(12.0)}, 3)])
    assert joined.loss == 3.5 and joined.sums == {"loss": 14.0} and joined.count == 4
    assert not joined.loss.requires_grad


def test_another_micro_batch_continues_the_same_training(tmp_path):
    straight, fresh = Narrow(99), Narrow(99)
    fitted(straight)
    with pytest.raises(KeyboardInterrupt):
        fitted(Narrow(99), task=At(14, raises()), folder=tmp_path, save_every_steps=1, micro_batch=4)
    fitted(fresh, folder=tmp_path, micro_batch=1)
    assert set(fresh.sizes) == {1}
    close(weights(straight), weights(fresh), SAME)


def test_validation_and_evaluation_are_computed_in_pieces_too():
    data = loaders(45, 8) | {"validation": Batches(*clouds(45, 1), 24, shuffle=False)}
    wide, narrow = Narrow(99), Narrow(6)
    best = fitted(wide, data=data).best_score
    assert fitted(narrow, data=data, micro_batch=6).best_score == pytest.approx(best, abs=1e-5)
    whole = train.evaluate(wide, TASK, data["validation"])
    assert train.evaluate(narrow, TASK, data["validation"], micro_batch=5) == pytest.approx(whole, abs=1e-5)


def test_batch_normalisation_never_meets_a_single_sample():
    model, trained = Narrow(99, normalised=True), []
    model.register_forward_hook(lambda net, _, logits: trained.extend([len(logits)] * net.training))
    fitted(model, micro_batch=2, epochs=1)  # 45 = 5 * 8 + 5 samples: 2 + 3, not 1 + 2 + 2
    assert set(trained) == {2, 3} and model.inner[1].num_batches_tracked == len(trained)


# --- in a run ----------------------------------------------------------------------------------------------

SMALL = {"epochs": 1, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": []}


def test_the_command_tells_it_in_one_sentence_and_resumes_with_what_it_names(tmp_path, monkeypatch, capfd):
    class Refusing(Classification):
        def __call__(self, model, batch):
            if len(batch[0]) > 20:
                raise RuntimeError(SAID[1])
            return super().__call__(model, batch)

    monkeypatch.setattr(Recipe, "task", lambda recipe, settings: Refusing(settings.label_smoothing))
    command, words = typing(monkeypatch, capfd), ("train", "--run-dir", tmp_path / "run")
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    status, _, error = command(*words, "--recipe", "digits_quanv", *settings)
    assert status == 2 and error.count("\n") == 1
    assert error.startswith("qnnkit: Memory ran out at epoch 1, batch 0 ([enforce fail")
    [remedy] = re.findall(r"--set (micro_batch=\d+)", error)
    status, _, error = command(*words, "--set", remedy)
    assert (status, remedy) == (0, "micro_batch=16"), error
    run = runs.open_run(tmp_path / "run")
    [final] = run.tested().values()
    assert run.config.micro_batch == 16 and final["test_accuracy"] > 0.1
