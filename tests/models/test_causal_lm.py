"""Causal language models: building, loading and adapting by name; the loss of the next token."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from torch import nn

from qnnkit.adapters import adapt
from qnnkit.adapters.attach import trial
from qnnkit.data.tokens import IGNORED
from qnnkit.models.causal_lm import causal_lm, in_four_bits, llama_config, without_weights
from qnnkit.tasks import Language
from tests.nets import llama
from tests.toys import refused

VOCABULARY, LENGTH = 50, 12


def small(seed: int = 0, **changes):
    return llama(seed, **{"vocab_size": VOCABULARY, "eos_token_id": 0} | changes)


def tokens(n: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (n, LENGTH), generator=torch.Generator().manual_seed(seed))


def half_masked(n: int = 24) -> dict[str, torch.Tensor]:
    """Blocks whose first 1, 2, ... positions are not predicted; some blocks predict none."""
    ids = tokens(n)
    hidden = torch.arange(LENGTH) < 1 + (torch.arange(n) % LENGTH)[:, None]
    return {"input_ids": ids, "labels": ids.masked_fill(hidden, IGNORED)}


# --- the task ----------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_next_token_if_there_is_one():
    model, batch = small(), half_masked()
    mean, n = model(**batch).loss.item(), int((batch["labels"][:, 1:] != IGNORED).sum())
    step = Language()(model, batch)
    assert step.count == n < 24 * (LENGTH - 1)
    assert step.loss.item() == pytest.approx(mean, rel=1e-5), "as in transformers"
    assert float(step.sums["loss"]) == pytest.approx(n * mean, rel=1e-5)
    nothing = Language()(model, {key: values[11:12] for key, values in batch.items()})
    assert (nothing.loss.item(), nothing.count) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype):
    logits = (20 * torch.randn(2, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(0))).to(dtype)
    batch = {"input_ids": tokens(2), "labels": tokens(2)}
    step = Language()(lambda **options: SimpleNamespace(logits=logits), batch)
    exact = nn.functional.cross_entropy(logits[:, :-1].double().mT, batch["labels"][:, 1:])
    assert step.loss.dtype == torch.float32 and step.loss.item() == pytest.approx(float(exact), rel=1e-6)


# --- models ------------------------------------------------------------------------------------------------


def test_a_named_size_is_built_from_scratch():
    one, other, third = (causal_lm("tiny", vocabulary=300, length=64, seed=seed) for seed in (0, 0, 1))
    assert one.config.vocab_size == 300 and one.config.max_position_embeddings == 64
    weights = [next(model.parameters()) for model in (one, other, third)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    half = causal_lm("tiny", vocabulary=300, dtype="bfloat16")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32, "positions rotate by them"


@pytest.fixture
def saved(tmp_path):
    small().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("sequence_length", lambda folder: causal_lm(folder, length=33)),
        ("vocabulary", lambda folder: causal_lm(folder, vocabulary=51)),
        ("length", lambda folder: causal_lm("tiny", length=-5, events="v2")),
        ("events", lambda folder: causal_lm("tiny", events="v9")),
        ("dtype", lambda folder: causal_lm("tiny", dtype="float8")),
        ("size", lambda folder: llama_config("tinny")),
        ("model", lambda folder: causal_lm(folder.parent)),
        ("model", lambda folder: causal_lm("meta-llama/Llama-3.2-3B")),
        ("model", lambda folder: adapt(small()).save_pretrained(folder / "a") or causal_lm(folder / "a")),
        ("model", lambda folder: without_weights(folder.parent)),
        ("model", lambda folder: adapt(adapt(small()))),
    ],
)
def test_bad_arguments_raise_an_error(saved, argument, call, caplog):
    """In one sentence, without the retry messages of the Hub's client."""
    with refused(argument):
        call(saved)
    assert not caplog.records


def test_code_that_comes_with_a_model_does_not_run(saved):
    trace = saved.parent / "ran"
    (saved / "own.py").write_text(f"open({str(trace)!r}, 'w')")
    config = json.loads((saved / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (saved / "config.json").write_text(json.dumps(config))
    with refused("model"):
        causal_lm(saved)
    assert not trace.exists()


# --- four bits ---------------------------------------------------------------------------------------------


def test_four_bits_need_cuda_bitsandbytes_and_a_trained_model(monkeypatch):
    installed, find = {"bitsandbytes": True}, importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed.get(name) or find(name))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    for args, why in ((("base", "cpu"), "CUDA"), (("base", "mps"), "CUDA"), (("tiny", "cuda"), "scratch")):
        computes, note = in_four_bits(*args)
        assert computes is None and note.startswith("Weights are in float32, not in 4 bits") and why in note
    assert in_four_bits("base", "cuda")[0] == torch.float16
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert in_four_bits("base", "cuda")[0] is None


def test_a_skeleton_knows_how_its_weights_are_stored():
    """PEFT asks 4-bit weights for it when it adds an adapter."""
    base = small()
    base.lm_head.weight.quant_type = "nf4"
    weight = trial(base, LoraConfig(target_modules=["q_proj"])).base_model.model.lm_head.weight
    assert weight.is_meta and weight.quant_type == "nf4" and not base.lm_head.weight.is_meta
