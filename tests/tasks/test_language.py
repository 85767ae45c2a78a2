"""Generated text, the loss on held-out text, and folders that plain transformers and PEFT can load."""

import json
import math

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from qnnkit import adapters, tasks, train
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
    strong = {"vocab_size": 300, "initializer_range": 0.5}  # so that weights have an effect
    return llama(seed, **strong | changes)


def logits(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


# --- generation --------------------------------------------------------------------------------------------


def greedy(model, ids, n: int) -> list[int]:
    """One token after another, each from a pass over all previous ones."""
    for _ in range(n):
        ids = [*ids, int(logits(model, torch.tensor([ids]))[0, -1].argmax())]
    return ids


def without_end(model, tokenizer):
    """A copy of the model that never ends a text."""
    bias = torch.zeros(300)
    bias[tokenizer.eos_token_id] = -1e9
    model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return model


def test_greedy_text_is_the_most_likely_token_each_time(splits):
    """The model sees the last tokens of the prompt that leave room within 32."""
    model = without_end(small(), splits.tokenizer)
    for prompt in ("The", "The quick brown fox " * 20):  # the prompt alone exceeds the positions
        seen = splits.tokenizer.encode(prompt)[-22:]
        reply = tasks.generate(model, splits.tokenizer, prompt, 10, temperature=0)
        assert reply == splits.tokenizer.decode(greedy(model, seen, 10)[len(seen) :])
    assert len(splits.tokenizer.encode(tasks.generate(model, splits.tokenizer, "The"))) > 10, "16 alone"
    assert tasks.generate(model, splits.tokenizer, "", 3)


def test_draws_depend_only_on_the_seed(splits):
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


def test_a_text_is_a_users_message_if_there_is_a_template():
    tokenizer = tokenizers.trained([TEXT], 300)
    tokenizer.chat_template = tokenizers.PLAIN_CHAT
    asked = tasks.generate(small(), tokenizer, "Who?", 5, temperature=0)
    assert asked == tasks.generate(small(), tokenizer, "User: Who?\nAssistant:", 5, temperature=0, raw=True)
    assert asked != tasks.generate(small(), tokenizer, "Who?", 5, temperature=0, raw=True)


# --- evaluation --------------------------------------------------------------------------------------------


def test_losses_equal_the_loops_and_an_adapters_include_its_bases(splits):
    model, task = shaken(adapt(small().train())), Language()
    loss = task.loss(model, splits)
    assert all(module.training for module in model.modules())
    loop = [train.evaluate(each, task, splits.batches("test", 7, shuffle=False)) for each in (model, small())]
    assert loss == pytest.approx(loop[0]["loss"], abs=1e-6)
    judged = task.judge(model, splits, loop[0])
    assert judged["perplexity"] == pytest.approx(math.exp(loop[0]["loss"]), rel=1e-9)
    assert judged["base_loss"] == pytest.approx(loop[1]["loss"], abs=1e-6) != pytest.approx(loop[0]["loss"])
    assert list(task.judge(small(), splits, loop[1])) == ["perplexity"]
    assert task.base_loss(adapt(small(1)), splits) == pytest.approx(task.loss(small(1), splits), abs=1e-6)


# --- files -------------------------------------------------------------------------------------------------


PROMPT = "The quick brown fox"
METHODS = {"lora": {"r": 4}, "vera": {"r": 4}, "ia3": {}, "loha": {"targets": ["lm_head"]}}
METHODS |= {"oft": {"r": 4, "oft_block_size": 0}, "prompt_tuning": {"num_virtual_tokens": 2}}
TIED = {"num_key_value_heads": 1, "tie_word_embeddings": True}  # as Llama 3.2


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True")  # PEFT's own load
@pytest.mark.parametrize(("method", "sizes"), [*((x, {}) for x in METHODS), ("lora", TIED), ("loha", TIED)])
def test_an_adapter_trains_and_loads_and_merges_without_the_kit(splits, tmp_path, method, sizes):
    base = tasks.save(small(**sizes), splits.tokenizer, tmp_path / "base")
    ids = torch.tensor([splits.tokenizer.encode(PROMPT)])
    model = shaken(adapt(causal_lm(base), method, **METHODS[method])).eval()
    Language()(model, next(iter(splits.batches("train", 2, shuffle=False)))).loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    folder, expected = tasks.save(model, splits.tokenizer, tmp_path / "adapter"), logits(model, ids)
    assert (expected[:, -1] - logits(causal_lm(base), ids)[:, -1]).abs().max() > 1e-3
    assert torch.equal(logits(adapters.load(causal_lm(base), folder), ids), expected)
    load = AutoModelForCausalLM.from_pretrained
    with torch.random.fork_rng():
        models = [PeftModel.from_pretrained(load(base), folder)]
        if method == "prompt_tuning":
            with refused("model", NotImplementedError):
                tasks.merge(model)
        else:
            merged = tasks.merge(model)
            assert torch.equal(logits(model, ids), expected) and hasattr(model, "disable_adapter"), "a copy"
            assert merged.state_dict().keys() == small().state_dict().keys()
            assert merged.config.tie_word_embeddings == (sizes == TIED and method != "loha")
            models.append(load(tasks.save(merged, splits.tokenizer, tmp_path / "merged")))
        given = torch.tensor([AutoTokenizer.from_pretrained(folder)(PROMPT).input_ids])
        for plain in models:
            torch.testing.assert_close(logits(plain, given), expected, atol=LOGITS, rtol=0)


def test_a_save_replaces_the_last_one_and_an_adapters_has_no_base_weights(splits, tmp_path):
    """test_workspace checks that a save is complete or keeps the old one, and replaces nothing else."""
    at = tasks.save(small(), splits.tokenizer, tmp_path / "base", {"epochs": 7})
    assert json.loads((at / "training_config.json").read_text())["epochs"] == 7
    with refused("model"):
        tasks.merge(small())
    model = adapt(causal_lm(at))
    folder = tasks.save(model, splits.tokenizer, tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(at)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    assert len(weights) < 20_000, "the base weights are in it"
    tasks.save(shaken(model), splits.tokenizer, folder)
    assert (folder / "adapter_model.safetensors").read_bytes() != weights
    (folder / "a.tex").write_text("words")
    with pytest.raises(FileExistsError):
        tasks.save(model, splits.tokenizer, folder)
