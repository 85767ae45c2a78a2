"""Text from a model, its loss on held-out text, and folders that plain transformers and PEFT load."""

from __future__ import annotations

import json
import math

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from qnnkit import adapters, recipes, tasks, train
from qnnkit.adapters import adapt
from qnnkit.data import tokenizers
from qnnkit.data.text import text
from qnnkit.models.causal_lm import causal_lm
from qnnkit.tasks import Language
from tests.nets import llama, shaken
from tests.toys import refused

TEXT = "\n\n".join(
    f"SPEAKER {i % 3}:\nThe quick brown fox number {i} jumps. " + "It is a dog. " * 8 for i in range(150)
)
LOGITS = 1e-5  # largest difference between a model and its saved form


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(TEXT)
    return text(path, sequence_length=24, vocabulary=300)


def small(seed: int = 0, **changes):
    strong = {"vocab_size": 300, "initializer_range": 0.5}  # so that weights matter
    return llama(seed, **strong | changes)


def logits(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


# --- generation --------------------------------------------------------------------------------------------


def greedy(model, ids, n: int) -> list[int]:
    """One token after the other, each from a pass over all of them."""
    for _ in range(n):
        ids = [*ids, int(logits(model, torch.tensor([ids]))[0, -1].argmax())]
    return ids


def without_end(model, tokenizer):
    """A model that never ends a text."""
    bias = torch.zeros(300)
    bias[tokenizer.eos_token_id] = -1e9
    model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return model


def test_greedy_text_is_the_most_likely_token_each_time(splits):
    """The last tokens that leave room among 32 are seen."""
    model = without_end(small(), splits.tokenizer)
    for prompt in ("The", "The quick brown fox " * 20):  # which is longer than the positions by itself
        seen = splits.tokenizer.encode(prompt)[-22:]
        found = tasks.generate(model, splits.tokenizer, prompt, 10, temperature=0)
        assert found == splits.tokenizer.decode(greedy(model, seen, 10)[len(seen) :])
    assert len(splits.tokenizer.encode(tasks.generate(model, splits.tokenizer, "The"))) > 10, "16 by itself"


def test_draws_follow_from_the_seed_alone(splits):
    model = without_end(small().train(), splits.tokenizer)

    def draw(seed, **options):
        return tasks.generate(model, splits.tokenizer, "It", 12, 1.0, seed=seed, **options)

    before = torch.get_rng_state()
    one = draw(0)
    assert torch.equal(torch.get_rng_state(), before) and model.training
    model.generation_config.update(do_sample=True, top_p=1e-4, temperature=0.1, top_k=1)  # as published ones
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert draw(0) == one != draw(1)
    assert draw(3, top_k=1) == tasks.generate(model, splits.tokenizer, "It", 12, 0)


def test_a_text_ends_where_the_model_ends_it(splits):
    model = small()
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token as likely as the other: the first, which ends a text
    found = tasks.generate(model, splits.tokenizer, "It", 12, temperature=0)
    assert splits.tokenizer.eos_token_id == 0 and found == ""
    assert tasks.generate(without_end(model, splits.tokenizer), splits.tokenizer, "", 3)


def test_a_text_is_a_user_s_message_where_there_is_a_template():
    tokenizer = tokenizers.trained([TEXT], 300)
    tokenizer.chat_template = tokenizers.PLAIN_CHAT
    asked = tasks.generate(small(), tokenizer, "Who?", 5, temperature=0)
    written = "User: Who?\nAssistant:"
    assert asked == tasks.generate(small(), tokenizer, written, 5, temperature=0, raw=True)
    assert asked != tasks.generate(small(), tokenizer, "Who?", 5, temperature=0, raw=True)


def prompted():
    return adapt(small(), "prompt_tuning", num_virtual_tokens=2)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("n", lambda splits: tasks.generate(small(), splits.tokenizer, "It", 0)),
        ("n", lambda splits: tasks.generate(small(), splits.tokenizer, "It", 32)),
        ("model", lambda splits: tasks.merge(prompted())),
        ("model", lambda splits: tasks.merge(small())),
    ],
)
def test_what_is_refused(splits, argument, call):
    """Numbers that make no text, and what cannot be merged."""
    with refused(argument, (ValueError, NotImplementedError)):
        call(splits)


# --- evaluation --------------------------------------------------------------------------------------------


def test_losses_are_the_loop_s_and_an_adapter_s_stand_beside_its_base_s(splits):
    model, task = shaken(adapt(small().train())), Language()
    loss = task.loss(model, splits)
    assert all(module.training for module in model.modules())
    loop = [train.evaluate(each, task, splits.batches("test", 7, shuffle=False)) for each in (model, small())]
    assert loss == pytest.approx(loop[0]["loss"], abs=1e-6)
    found = task.judge(model, splits, loop[0])
    assert found["perplexity"] == pytest.approx(math.exp(loop[0]["loss"]), rel=1e-9)
    assert found["base_loss"] == pytest.approx(loop[1]["loss"], abs=1e-6) != pytest.approx(loop[0]["loss"])
    assert list(task.judge(small(), splits, loop[1])) == ["perplexity"]


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_and_merged_models_are_read_without_the_kit(splits, tmp_path):
    base, prompt, expected = small(), "The quick brown fox", {}
    tasks.save(base, splits.tokenizer, tmp_path / "base")
    ids = torch.tensor([splits.tokenizer.encode(prompt)])
    for method in ("lora", "vera"):
        model = shaken(adapt(causal_lm(tmp_path / "base"), method, r=4))
        tasks.save(model, splits.tokenizer, tmp_path / method)
        before, merged = logits(model, ids), tasks.merge(model)
        tasks.save(merged, splits.tokenizer, tmp_path / f"{method} merged")
        expected[method] = expected[f"{method} merged"] = logits(model, ids)
        assert torch.equal(expected[method], before) and hasattr(model, "disable_adapter"), "it is a copy"
        assert type(merged) is type(base) and merged.state_dict().keys() == base.state_dict().keys()
        assert (expected[method] - logits(base, ids)).abs().max() > 0.1
    found, load = {}, AutoModelForCausalLM.from_pretrained
    with torch.random.fork_rng():
        for method in ("lora", "vera"):
            given = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / method)(prompt).input_ids])
            beside = PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / method)
            for name, plain in ((f"{method} merged", load(tmp_path / f"{method} merged")), (method, beside)):
                found[name] = logits(plain, given)
    torch.testing.assert_close(found, expected, atol=LOGITS, rtol=0)


def test_a_save_holds_what_plain_libraries_read_and_replaces_an_earlier_one(splits, tmp_path):
    """That it is whole or leaves the old one, and that nothing else is replaced: test_workspace."""
    base = small()
    at = tasks.save(base, splits.tokenizer, tmp_path / "base", {"epochs": 7})
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in at.iterdir()}
    assert json.loads((at / "training_config.json").read_text())["epochs"] == 7
    model, names = adapt(base), {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    folder = tasks.save(model, splits.tokenizer, tmp_path / "adapter")
    assert names <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(at)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    assert len(weights) < 20_000, "the base is not in it"
    tasks.save(shaken(model), splits.tokenizer, folder)
    assert (folder / "adapter_model.safetensors").read_bytes() != weights
    assert {path.name for path in tmp_path.iterdir()} == {"adapter", "base"}
    (folder / "a.tex").write_text("words")
    with pytest.raises(FileExistsError):
        tasks.save(model, splits.tokenizer, folder)


METHODS = {"ia3": {}, "loha": {}, "prompt_tuning": {"num_virtual_tokens": 2}}
METHODS |= {"oft": {"r": 4, "oft_block_size": 0}}


@pytest.mark.parametrize("method", METHODS)
def test_adapters_of_other_methods_train_and_are_read_again(splits, tmp_path, method):
    ids = torch.tensor([splits.tokenizer.encode("The quick")])
    model = shaken(adapt(small(), method, **METHODS[method])).eval()
    Language()(model, next(iter(splits.batches("train", 2, shuffle=False)))).loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    tasks.save(model, splits.tokenizer, tmp_path / "adapter")
    again = adapters.load(small(), tmp_path / "adapter")
    assert torch.equal(logits(again, ids), logits(model, ids))
    assert (logits(again, ids)[:, -1] - logits(small(), ids)[:, -1]).abs().max() > 1e-3


def test_the_architecture_of_llama_3_2_goes_the_same_way(splits, tmp_path):
    """Fewer key-value heads than heads, and one matrix for tokens in and out, in 16 bits."""
    config = {"num_key_value_heads": 1, "tie_word_embeddings": True}
    tasks.save(small(**config), splits.tokenizer, tmp_path / "base")
    model = adapt(causal_lm(tmp_path / "base", dtype="bfloat16"), "lora", r=4)
    loaders = {name: splits.batches(name, 8, shuffle=False) for name in ("train", "validation")}
    changed = {"epochs": 1, "learning_rate": 0.01, "gradient_checkpointing": True}
    rows: list[dict] = []
    before = Language().loss(model, splits, "validation")
    train.fit(model, Language(), loaders, recipes.settings("llama_a100", **changed), log=rows.append)
    assert rows[-1]["validation_loss"] < before
    after = Language().loss(model, splits, "validation")
    assert after == pytest.approx(rows[-1]["validation_loss"], abs=0.02)
    folder = tasks.save(tasks.merge(model), splits.tokenizer, tmp_path / "merged")
    ids = torch.tensor([splits.tokenizer.encode("The quick")])
    merged = causal_lm(folder, dtype="bfloat16")
    assert merged.get_input_embeddings().weight is merged.get_output_embeddings().weight
    expected, base = logits(model, ids), logits(causal_lm(tmp_path / "base", dtype="bfloat16"), ids)
    assert (expected - base).abs().max() > 0.5
    torch.testing.assert_close(logits(merged, ids), expected, atol=0.15, rtol=0)  # of up to 7, in bfloat16
