"""Causal language models: built, loaded and adapted by name; the loss of the next token."""

from __future__ import annotations

import importlib.util
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig
from torch import nn

from qnnkit import train
from qnnkit.adapters import adapt
from qnnkit.adapters.attach import tried
from qnnkit.checkpoint import Store
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits
from qnnkit.models.causal_lm import LLAMA, causal_lm, four_bit, in_four_bits, llama_config, without_weights
from qnnkit.settings import Settings
from qnnkit.tasks import Language, perplexity
from tests.nets import llama

VOCABULARY, LENGTH = 50, 12


def small(seed: int = 0, **changes):
    return llama(seed, **{"vocab_size": VOCABULARY, "eos_token_id": 0} | changes)


def tokens(n: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (n, LENGTH), generator=torch.Generator().manual_seed(seed))


def half_masked(n: int = 24) -> dict[str, torch.Tensor]:
    """Blocks of which the first 1, 2, ... positions are not predicted."""
    ids = tokens(n)
    hidden = torch.arange(LENGTH) < (torch.arange(n) % (LENGTH - 2))[:, None]
    return {"input_ids": ids, "labels": ids.masked_fill(hidden, IGNORED)}


def splits_of(batch) -> TokenSplits:
    parts = [
        TokenSet(batch["input_ids"][rows], batch["labels"][rows], ("",) * 8)
        for rows in (slice(0, 8), slice(8, 16), slice(16, 24))
    ]
    return TokenSplits("test", *parts, tokenizer=range(VOCABULARY))


def refusal(kind, call, *given, **options) -> str:
    with pytest.raises(kind) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the task ----------------------------------------------------------------------------------------------


def by_hand(model, batch) -> tuple[float, int]:
    """Summed nats and number of predicted tokens, in NumPy, position by position."""
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"]).logits.double().numpy()
    total, count = 0.0, 0
    for row, labels in enumerate(batch["labels"].tolist()):
        for place in range(1, LENGTH):
            if labels[place] != IGNORED:
                scores = logits[row, place - 1]
                total += np.log(np.exp(scores).sum()) - scores[labels[place]]
                count += 1
    return total, count


def test_the_loss_is_that_of_the_next_token_where_there_is_one():
    model, batch = small(), half_masked()
    total, count = by_hand(model, batch)
    step = Language()(model, batch)
    assert step.count == count < 24 * (LENGTH - 1)
    assert float(step.sums["loss"]) == pytest.approx(total, rel=1e-5)
    assert step.loss.item() == pytest.approx(total / count, rel=1e-5)
    assert step.loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-5), "as transformers has it"
    assert Language().monitor in step.sums
    assert Language().judge({"loss": total / count})["perplexity"] == math.exp(total / count)


def test_means_are_over_tokens_however_blocks_are_batched():
    model, batch = small(), half_masked()
    total, count = by_hand(model, batch)
    splits = splits_of(batch)
    sums = [
        train.evaluate(model, Language(), splits.batches("train", size, shuffle=False)) for size in (1, 3, 8)
    ]
    for found in sums:
        assert found["loss"] == pytest.approx(sums[-1]["loss"], abs=1e-6)
        assert found["minus_loss"] == -found["loss"]
    parts = [splits.split(name) for name in ("train", "validation", "test")]
    weighted = [
        train.evaluate(model, Language(), splits.batches(name, 3, shuffle=False))["loss"] * part.n_predicted
        for name, part in zip(("train", "validation", "test"), parts, strict=True)
    ]
    assert sum(weighted) / count == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("settings", [{"micro_batch": 2}, {"micro_batch": 1}, {"micro_batch": 3}])
def test_an_update_is_that_of_the_mean_over_its_tokens_however_it_is_cut(settings):
    """Blocks of 11 to 2 predicted tokens, eight to an update: in one batch, or in several that are added."""
    batch = half_masked()
    one, other = small(), small()
    for model, given in ((one, {}), (other, settings)):
        config = Settings(
            epochs=1, batch_size=8, optimizer="sgd", learning_rate=0.1, schedule="constant", **given
        )
        splits = splits_of(batch)
        loaders = {
            split: splits.batches(split, config.batch_size, shuffle=False)
            for split in ("train", "validation")
        }
        train.fit(model, Language(), loaders, config)
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype):
    logits = (20 * torch.randn(2, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(0))).to(dtype)
    batch = {"input_ids": tokens(2), "labels": tokens(2)}
    step = Language()(lambda **given: SimpleNamespace(logits=logits), batch)
    exact = nn.functional.cross_entropy(
        logits[:, :-1].double().flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    assert step.loss.dtype == torch.float32 and step.loss.item() == pytest.approx(float(exact), rel=1e-6)


def test_a_batch_in_which_nothing_is_predicted_is_no_nan():
    batch = {"input_ids": tokens(2), "labels": torch.full((2, LENGTH), IGNORED)}
    step = Language()(small(), batch)
    assert step.loss.item() == 0 and step.count == 0


def test_perplexity_of_nothing_known():
    even = lambda **given: SimpleNamespace(logits=torch.zeros(24, LENGTH, VOCABULARY))  # noqa: E731
    step = Language()(even, half_masked())
    assert perplexity(step.loss.item()) == pytest.approx(VOCABULARY, rel=1e-5)


@pytest.mark.parametrize(("method", "rate"), [(None, 0.03), ("lora", 0.03), ("vera", 0.3)])
def test_the_loop_trains_it(method, rate):
    model = adapt(small(), method, r=4) if method else small()
    ids = tokens(1).repeat(24, 1)  # one sentence, which can be learnt
    splits = splits_of({"input_ids": ids, "labels": ids})
    loaders = {name: splits.batches(name, 4, shuffle=name == "train") for name in ("train", "validation")}
    rows = []
    config = Settings(epochs=3, batch_size=4, learning_rate=rate, gradient_checkpointing=True)
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    train.fit(model, Language(), loaders, config, log=rows.append)
    assert rows[-1]["validation_loss"] < rows[0]["train_loss"] - 0.05
    assert bool(frozen) == bool(method)
    for name, weight in model.named_parameters():
        assert name not in frozen or torch.equal(weight, frozen[name])


@pytest.mark.parametrize("method", ["lora", "quantum_peft", "qpa"])
def test_an_adapter_stopped_in_an_epoch_ends_in_the_same_bits(tmp_path, monkeypatch, method):
    monkeypatch.setattr(Store, "busy", False)  # a disk that keeps pace: none of the checkpoints is put off
    ids = tokens(24)
    splits = splits_of({"input_ids": ids, "labels": ids})
    config = Settings(epochs=2, batch_size=2, learning_rate=0.03, save_every_steps=3, optimizer="adamw")

    def ends(folder, stop=None):
        def on_update(moment):
            steps.append(moment)
            if len(steps) == stop:
                raise KeyboardInterrupt

        steps: list = []
        model = adapt(small(), method, r=2)
        loaders = {each: splits.batches(each, 2, shuffle=each == "train") for each in ("train", "validation")}
        train.fit(model, Language(), loaders, config, folder=folder, on_update=on_update)
        return model.state_dict(), len(steps)

    straight, n = ends(tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        ends(tmp_path / "stopped", stop=8)
    resumed, left = ends(tmp_path / "stopped")
    assert (n, left) == (8, 2), "from the sixth update on"
    assert all(torch.equal(resumed[name], weight) for name, weight in straight.items())
    fresh = adapt(small(), method, r=2).state_dict()
    assert any(not torch.equal(fresh[name], weight) for name, weight in straight.items())


# --- models ------------------------------------------------------------------------------------------------


def test_a_size_from_scratch():
    one, other, third = (causal_lm("tiny", vocabulary=300, length=64, seed=seed) for seed in (0, 0, 1))
    assert one.config.vocab_size == 300 and one.config.max_position_embeddings == 64
    assert one(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 300)
    weights = [next(model.parameters()) for model in (one, other, third)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    half = causal_lm("tiny", vocabulary=300, dtype="bfloat16")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32, "positions are turned by them"


def test_the_planner_s_sizes_are_these():
    from qnnkit import measure

    assert measure.sizes()["llama"] is LLAMA
    config = llama_config("3b")
    assert (config.hidden_size, config.num_key_value_heads, config.vocab_size) == (3072, 8, 128256)
    assert config.max_position_embeddings == 131072 and config.tie_word_embeddings


def test_a_folder_is_loaded_with_every_weight(tmp_path):
    base = small()
    base.save_pretrained(tmp_path / "base")
    again = causal_lm(tmp_path / "base", vocabulary=VOCABULARY, length=32)
    assert again.name_or_path == str(tmp_path / "base")
    batch = {"input_ids": tokens(2)}
    assert torch.equal(again(**batch).logits, base(**batch).logits)


def test_a_sequence_or_vocabulary_that_the_model_does_not_take(tmp_path):
    small().save_pretrained(tmp_path / "base")
    told = refusal(ValueError, causal_lm, tmp_path / "base", length=33)
    assert "`sequence_length` must be at most 32" in told
    told = refusal(ValueError, causal_lm, tmp_path / "base", vocabulary=51)
    assert "`vocabulary` must be at most 50" in told


def test_folders_that_hold_no_whole_model(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(ValueError, causal_lm, tmp_path / "empty")
    adapt(small()).save_pretrained(tmp_path / "adapter")
    assert "an adapter alone" in refusal(ValueError, causal_lm, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HF_HUB_OFFLINE", True, "HF_HUB_OFFLINE forbids to ask the Hub"),
        (
            "ENDPOINT",
            "http://127.0.0.1:9",
            "the Hugging Face Hub cannot be reached (",
        ),
    ],
)
def test_a_hub_name_without_network(monkeypatch, caplog, name, value, why):
    """One sentence at once, where the Hub's own client would try for a minute, and say so each time."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, name, value)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    told = refusal(ValueError, causal_lm, "meta-llama/Llama-3.2-3B")
    assert "be a causal language model that can be read here, but is 'meta-llama/Llama-3.2-3B'" in told
    assert "Give a local folder with config.json" in told and why in told and not caplog.records


def test_a_model_that_brings_code_runs_none_of_it(tmp_path):
    small().save_pretrained(tmp_path / "base")
    trace = tmp_path / "ran"
    (tmp_path / "base" / "own.py").write_text(f"open({str(trace)!r}, 'w')")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    assert "It was not read" in refusal(ValueError, causal_lm, tmp_path / "base")
    assert not trace.exists()


def test_names_that_are_not_known():
    assert "float32, bfloat16, float16" in refusal(ValueError, causal_lm, "tiny", dtype="float8")
    assert "Did you mean 'tiny'?" in refusal(ValueError, llama_config, "tinny")


# --- four bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_four_bits_need_cuda(tmp_path, device):
    small().save_pretrained(tmp_path / "base")
    model = four_bit(tmp_path / "base", device=device, dtype="bfloat16")
    assert next(model.parameters()).dtype == torch.bfloat16
    computes, told = in_four_bits(tmp_path / "base", device)
    assert computes is None
    assert told == f"Weights are in float32, not in 4 bits: they need a CUDA device, and this is {device}."


def test_four_bits_need_bitsandbytes(monkeypatch):
    found = importlib.util.find_spec
    absent = lambda name: None if name == "bitsandbytes" else found(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    computes, told = in_four_bits("base", "cuda")
    assert computes is None and "bitsandbytes is not installed" in told
    present = lambda name: name == "bitsandbytes" or found(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", present)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    computes, told = in_four_bits("base", "cuda")
    assert computes == torch.float16 and told == "Weights are in 4 bits (NF4), products in float16."
    assert in_four_bits("tiny", "cuda")[0] is None


def test_how_a_weight_is_kept_is_known_of_a_skeleton():
    """PEFT asks weights in 4 bits for it when it puts an adapter beside them."""
    base = small()
    base.lm_head.weight.quant_type = "nf4"
    found = tried(base, LoraConfig(target_modules=["q_proj"])).base_model.model.lm_head.weight
    assert found.is_meta and found.quant_type == "nf4" and not base.lm_head.weight.is_meta


def test_a_model_without_weights_is_that_of_the_folder(tmp_path):
    small().to(torch.bfloat16).save_pretrained(tmp_path / "base")
    bare, whole = without_weights(tmp_path / "base"), causal_lm(tmp_path / "base")
    assert all(weight.is_meta and weight.dtype == torch.float32 for weight in bare.parameters())
    shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (bare, whole)]
    assert shapes[0] == shapes[1]
    assert "config.json" in refusal(ValueError, without_weights, tmp_path)


# --- adapters ----------------------------------------------------------------------------------------------


def n_trained(model) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def test_lora_by_name():
    model = adapt(small(), "lora", r=3, lora_alpha=12, targets=["q_proj", "down_proj"])
    config = model.peft_config["default"]
    assert config.r == 3 and config.lora_alpha == 12 and config.task_type == "CAUSAL_LM"
    assert n_trained(model) == 2 * (3 * (16 + 16) + 3 * (24 + 16))
    assert set(adapt(small()).peft_config["default"].target_modules) == {"q_proj", "v_proj"}


def test_an_adapter_starts_at_no_change_and_from_its_seed():
    base, ids = small(), tokens(2)
    expected = base(input_ids=ids).logits
    models = [adapt(small(), seed=seed) for seed in (0, 0, 1)]
    assert all(torch.allclose(model(input_ids=ids).logits, expected, atol=1e-6) for model in models)
    drawn = [next(p for n, p in model.named_parameters() if "lora_A" in n) for model in models]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vera", {"r": 32}),
        ("loha", {"r": 2, "alpha": 4}),
        ("ia3", {"targets": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
        ("oft", {"r": 4, "oft_block_size": 0}),
        ("boft", {"boft_block_size": 4}),
        ("prompt_tuning", {"num_virtual_tokens": 3}),
    ],
)
def test_other_methods_by_name(method, options):
    model = adapt(small(), method, **options).eval()  # LoHa draws in training
    assert 0 < n_trained(model) < 4000
    step = Language()(model, half_masked(2))
    step.loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)


def test_a_method_that_was_registered_goes_the_same_way(monkeypatch):
    """As the kit's own: its configuration, found by name in PEFT's table, is given what it has fields for."""
    import peft.mapping

    class Mine(peft.LoraConfig):
        """A method of another name."""

    monkeypatch.setitem(peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING, "MINE", Mine)
    assert type(adapt(small(), "mine", r=2).peft_config["default"]) is Mine


def test_what_is_refused_leaves_the_model_untouched():
    base = small()
    before = {name: weight.requires_grad for name, weight in base.named_parameters()}
    assert "PEFT can build here" in refusal(ValueError, adapt, base, r=-1)
    assert {name: weight.requires_grad for name, weight in base.named_parameters()} == before, "untouched"
    assert "have no adapter yet" in refusal(ValueError, adapt, adapt(small()))
