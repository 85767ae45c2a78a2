"""Running out of memory in training: one sentence with the remedy, and batches computed in pieces."""

import json
import re
from collections import namedtuple

import pytest
import torch
from torch import nn

from qnnkit import runs
from qnnkit.recipes import Recipe
from qnnkit.tasks import Classification
from qnnkit.train import stepper
from qnnkit.train.out_of_memory import OutOfMemory, ran_out
from tests.same import At, raises
from tests.toys import typing
from tests.train.test_train import fit, loaders, net

SAID = (
    "MPS backend out of memory (MPS allocated: 1 GB, max allowed: 2 GB).",
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
    "unable to mmap 96144 bytes from file <best.safetensors>: Cannot allocate memory (12)",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
)
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), *map(RuntimeError, SAID)]


def fitted(model, **options):
    """Training on six batches per epoch, the last of which has five samples."""
    usual = {"epochs": 2, "learning_rate": 0.05, "data": loaders(45, 8, shuffle=True)}
    return fit(model, **usual | options)


# --- the sentence ------------------------------------------------------------------------------------------

OTHERS = RuntimeError("mat1 and mat2 shapes"), OSError("no space")
BOTH = r"--set micro_batch=4 or --set gradient_checkpointing=true\. In another run_dir"


def test_allocator_errors_are_distinguished_from_others():
    assert all(map(ran_out, ERRORS)) and not any(map(ran_out, OTHERS))
    with pytest.raises(RuntimeError, match="mat1"):
        fitted(net(), task=At(1, raises(OTHERS[0])))


@pytest.mark.parametrize(
    ("training", "at", "place", "settings", "remedy"),
    [
        (True, 11, "epoch 2, batch 4", {}, BOTH),
        (False, 8, "epoch 2, a validation batch", {}, BOTH),
        (True, 1, "epoch 1, batch 0", {"micro_batch": 3}, r"--set micro_batch=1 or --set gradient_"),
        (True, 1, "epoch 1, batch 0", {"micro_batch": 1}, r"--set gradient_checkpointing=true\."),
        (True, 1, "epoch 1, batch 0", {"gradient_checkpointing": True}, r"--set micro_batch=4\."),
    ],
)
def test_the_error_names_the_place_and_the_remedy(training, at, place, settings, remedy):
    with pytest.raises(OutOfMemory) as caught:
        fitted(net(), task=At(at, raises(ERRORS[2]), training), **settings)
    sentence = (
        rf"Memory ran out at {place} \(MPS backend .*\)\. The same command resumes .* checkpoint: run it with"
    )
    assert re.match(f"{sentence} {remedy}", str(caught.value))
    assert isinstance(caught.value, MemoryError) and caught.value.__context__ is None


# --- batches in pieces --------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "images labels")


def test_pieces_are_nearly_equal_complete_and_of_the_same_types():
    from transformers import BatchEncoding

    values = torch.arange(8)
    pair = Pair(values[:, None].expand(8, 3), [values])
    pieces = stepper.pieces({"pair": pair, "nothing": None, "text": BatchEncoding({"ids": values})}, 3)
    assert [len(piece["pair"].labels[0]) for piece in pieces] == [2, 3, 3]
    assert torch.equal(torch.cat([piece["pair"].images for piece in pieces]), pair.images)
    assert torch.equal(torch.cat([piece["text"]["ids"] for piece in pieces]), values)
    kinds = {(type(piece["pair"]), piece["nothing"], type(piece["text"])) for piece in pieces}
    assert kinds == {(Pair, None, BatchEncoding)}


def test_batch_normalisation_never_meets_a_single_sample():
    model, trained = nn.Sequential(nn.BatchNorm1d(2), net()), []
    model.register_forward_hook(lambda net, _, logits: trained.extend([len(logits)] * net.training))
    fitted(model, micro_batch=2, epochs=1)  # 45 = 5 * 8 + 5 samples: 2 + 3, not 1 + 2 + 2
    assert set(trained) == {2, 3} and model[0].num_batches_tracked == len(trained)


# --- in a run ----------------------------------------------------------------------------------------------


def test_the_command_reports_one_sentence_and_resumes_with_its_remedy(tmp_path, monkeypatch, capfd):
    class Refusing(Classification):
        def __call__(self, model, batch):
            if len(batch[0]) > 20:
                raise RuntimeError(SAID[1])
            return super().__call__(model, batch)

    monkeypatch.setattr(Recipe, "task", lambda recipe, settings: Refusing(settings.label_smoothing))
    command, words = typing(monkeypatch, capfd), ("train", "--run-dir", tmp_path / "run")
    small = {"epochs": 1, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": []}
    settings = [word for name, value in small.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    status, _, error = command(*words, "--recipe", "digits_quanv", *settings)
    assert status == 2 and error.count("\n") == 1
    assert error.startswith("qnnkit: Memory ran out at epoch 1, batch 0 ([enforce fail")
    [remedy] = re.findall(r"--set (micro_batch=\d+)", error)
    status, _, error = command(*words, "--set", remedy)
    assert (status, remedy) == (0, "micro_batch=16"), error
    run = runs.open_run(tmp_path / "run")
    [final] = run.tested().values()
    assert run.config.micro_batch == 16 and final["test_accuracy"] > 0.1
