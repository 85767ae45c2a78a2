"""Circuits generate LoRA's weights: they do all that PEFT's LoRA does, and save as ordinary LoRA."""

import copy
import json

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import LlamaForCausalLM

from qnnkit import adapters, layers
from qnnkit.adapters import orthogonal
from qnnkit.train.recompute import recomputing
from tests import nets
from tests.same import raises, same
from tests.toys import refused

TARGETS = ["q_proj", "v_proj", "up_proj"]
NEAR = 1e-5
SMALL = {"n_layers": 2, "r": 2, "n_terms": 3}


def llama():
    return nets.llama(1, hidden_size=32, intermediate_size=48).eval()


def adapted(base=None, **options):
    return adapters.adapt(base or llama(), "quantum_peft", **{"targets": TARGETS, **SMALL, **options})


def tokens(seed=0, rows=2):
    return torch.randint(0, 50, (rows, 12), generator=torch.Generator().manual_seed(seed))


def logits(model, ids=None):
    with torch.no_grad():
        return model(tokens() if ids is None else ids).logits


def loss_of(model):
    return model(tokens(), labels=tokens()).loss


def gap(one, other):
    return (one - other).abs().max().item()


# --- initialisation --------------------------------------------------------------------------------


def test_a_new_adapter_changes_nothing_and_depends_only_on_the_seed():
    base = llama()
    before = logits(base)
    model = adapted(base, seed=1)
    assert gap(logits(model), before) == 0
    again, other = (adapted(seed=seed).state_dict() for seed in (1, 2))
    assert same(model.state_dict(), again) and not same(model.state_dict(), other)
    assert len({str(value) for key, value in again.items() if ".angles." in key}) == 12, "some start alike"


def test_the_update_is_the_product_of_the_circuits_matrices():
    """Layer by layer, against the definition in plain loops."""
    model = nets.shaken(adapted()).double()
    layer = model.get_submodule("base_model.model.model.layers.1.mlp.up_proj")
    update = layer.get_delta_weight("default").detach()
    v, u = (part["default"].parametrizations.weight[0] for part in (layer.lora_A, layer.lora_B))
    assert (v.side, u.side, u.layer) == ("lora_A", "lora_B", "model.layers.1.mlp.up_proj")
    expected = torch.zeros(48, 32, dtype=torch.float64)
    for term, strengths in enumerate(u.strengths.view(3, 2)):
        columns = [orthogonal.columns(each.angles.weights[term : term + 1], 2)[0] for each in (u, v)]
        expected += 8 * columns[0][:48] @ torch.diag(strengths) @ columns[1][:32].T
    assert gap(update, expected) < 1e-10 and update.abs().max() > 1e-3


# --- what PEFT's adapters do -----------------------------------------------------------------------


def test_an_adapter_can_be_disabled_merged_unmerged_and_unloaded():
    base = llama()
    bare = logits(base)
    model = nets.shaken(adapted(base))
    before = logits(model)
    assert gap(before, bare) > 1e-3
    for change in (lambda: None, model.merge_adapter):
        change()
        assert gap(logits(model), before) < NEAR
        with model.disable_adapter():  # this unmerges it
            assert gap(logits(model), bare) < NEAR
    model.merge_adapter()
    model.unmerge_adapter()
    assert gap(logits(model), before) < NEAR
    merged, unloaded = copy.deepcopy(model).merge_and_unload(), model.unload()
    assert gap(logits(merged), before) < NEAR and gap(logits(unloaded), bare) < NEAR
    for plain in (merged, unloaded):
        assert isinstance(plain, LlamaForCausalLM) and set(plain.state_dict()) == set(llama().state_dict())
        assert not any("qnnkit" in type(module).__module__ for module in plain.modules())
        assert not plain._forward_pre_hooks and not plain._forward_hooks


def test_two_adapters_can_be_switched_and_trained_further(tmp_path):
    model = nets.shaken(adapted())
    first = logits(model)
    nets.shaken(adapted(targets=["v_proj"], seed=5), seed=4).save_pretrained(tmp_path)
    adapters.load(model, tmp_path, "second", trainable=True)
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all(".second" in key for key in trained)
    second = logits(nets.shaken(model, seed=4))
    model.base_model.set_adapter(["default", "second"])
    both = logits(model)
    assert min(gap(second, first), gap(both, first), gap(both, second)) > 1e-3
    model.set_adapter("second")
    model.save_pretrained(tmp_path / "all")
    again = adapters.load(llama(), tmp_path / "all", trainable=True)
    adapters.load(again, tmp_path / "all" / "second", "other")
    assert gap(logits(again), second) < NEAR
    model.set_adapter("default")
    assert gap(logits(model), first) == 0
    model.delete_adapter("second")
    assert gap(logits(model), first) == 0 and gap(logits(again.merge_and_unload()), second) < NEAR


def test_a_saved_adapter_is_ordinary_lora_and_its_circuits_train_further(tmp_path):
    model = nets.shaken(adapted())
    before, slopes = logits(model), gradients(model)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "circuit.safetensors").exists()
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == config["lora_alpha"] == 6
    again = adapters.load(llama(), tmp_path)
    assert gap(logits(again), before) < NEAR and not adapters.count(again)["weights"]
    assert all(type(module).__module__.split(".")[0] != "qnnkit" for module in again.modules())
    light = PeftModel.from_pretrained(llama(), tmp_path, low_cpu_mem_usage=True, is_trainable=True)
    assert gap(logits(light), before) < NEAR
    more = adapters.load(llama(), tmp_path, trainable=True)
    assert gap(logits(more), before) == 0 and adapters.count(more) == adapters.count(model)
    assert same(gradients(more), slopes)


def test_circuits_that_do_not_match_the_saved_weights_raise_an_error(tmp_path):
    model = nets.shaken(adapted())
    model.save_pretrained(tmp_path)
    saved = (tmp_path / "circuit.safetensors").read_bytes()
    # as plain PEFT would: it does not touch the circuits
    nets.shaken(model, seed=8).save_pretrained(tmp_path)
    changed = logits(model)
    for content, message in ((saved, "it does not reproduce lora_"), (saved[:-9], "")):
        (tmp_path / "circuit.safetensors").write_bytes(content)
        base = llama()
        with refused("folder", says=message):
            adapters.load(base, tmp_path, trainable=True)
        assert not hasattr(base, "peft_config")
        assert gap(logits(adapters.load(base, tmp_path)), changed) < NEAR
    (tmp_path / "circuit.safetensors").unlink()
    plain = adapters.load(llama(), tmp_path, trainable=True)
    assert adapters.count(plain)["angles"] == 0 and gap(logits(plain), changed) < NEAR


# --- controls --------------------------------------------------------------------------------------


def test_controls_differ_only_in_entanglement_or_frozen_angles(tmp_path):
    model, frozen, free = adapted(), adapted(train_circuit=False), adapted(entangled=False)
    counts, state = adapters.count(model), model.state_dict()
    assert same(state, free.state_dict()) and same(state, frozen.state_dict())
    before = {key: value.clone() for key, value in state.items() if ".angles." in key}
    of_circuit = {id(weight) for weight in layers.exchanged_parameters(model)}
    assert {key for key, weight in model.named_parameters() if id(weight) in of_circuit} == {*before}
    assert adapters.count(free) == counts and sum(map(torch.numel, before.values())) == counts["angles"] > 0
    assert adapters.count(frozen) == {"weights": counts["weights"] - counts["angles"], "angles": 0}
    assert gap(logits(nets.shaken(model)), logits(nets.shaken(free))) > 1e-4
    frozen.set_adapter("default")  # this turns on gradients of the parameters
    optimizer = torch.optim.SGD([w for w in frozen.parameters() if w.requires_grad], lr=0.1)
    loss_of(nets.shaken(frozen)).backward()
    optimizer.step()
    assert all(torch.equal(frozen.state_dict()[key], value) for key, value in before.items())
    frozen.save_pretrained(tmp_path)
    again = adapters.load(llama(), tmp_path, trainable=True)
    assert gap(logits(again), logits(frozen)) == 0 and adapters.count(again) == adapters.count(frozen)


# --- training --------------------------------------------------------------------------------------


def gradients(model, backward=None):
    model.zero_grad()
    (backward or (lambda: loss_of(model).backward()))()
    return {key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointing_evaluation_and_extra_passes_change_no_gradient():
    model = nets.shaken(adapted()).train()
    plain = gradients(model)

    def disturbed():
        with recomputing(model):
            loss = loss_of(model)
        logits(model)
        loss.backward()

    def twice():
        for loss in [loss_of(model), loss_of(model)]:
            loss.backward()

    assert same(gradients(model, disturbed), plain)
    twofold = {key: 2 * value for key, value in plain.items()}
    torch.testing.assert_close(gradients(model, twice), twofold, rtol=1e-4, atol=1e-7)
    model.enable_input_require_grads()
    for reentrant in (False, True):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        assert all(gap(plain[key], grad) < 1e-6 for key, grad in gradients(model).items())


def test_changed_weights_take_effect_at_once():
    """Also after an interrupted call."""
    model = nets.shaken(adapted())
    angles = next(weight for key, weight in model.named_parameters() if "angles" in key)
    layer = next(module for module in model.modules() if isinstance(module, LoraLayer))
    for stopped in (False, True):
        before = logits(model), layer.get_delta_weight("default").detach()
        if stopped:
            with layer.register_forward_hook(lambda *_: raises()()), pytest.raises(KeyboardInterrupt):
                loss_of(model)
        angles.data[..., 0] += 0.5
        delta = layer.get_delta_weight("default").detach()  # first, because a call rebuilds everything
        after = logits(model)
        assert min(gap(before[0], after), gap(before[1], delta)) > 1e-6
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # a submodule called directly
        layer(x).sum().backward()
    assert gap(layer(x), layer.base_layer(x)) > 1e-4


def test_circuits_are_evaluated_once_per_step(monkeypatch):
    calls, plain = [], orthogonal.columns
    counting = lambda *args, **named: calls.append(1) or plain(*args, **named)  # noqa: E731
    monkeypatch.setattr(orthogonal, "columns", counting)
    model = adapted()
    calls.clear()
    loss_of(model).backward()
    assert len(calls) == 2  # one for sides of length 32, one for 48
    model.generate(input_ids=tokens(), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert len(calls) == 4
    with adapters.once(model):
        logits(model), logits(model)
    with model.disable_adapter():
        logits(model)
    assert len(calls) == 6


def test_a_bfloat16_model_keeps_the_circuit_in_float32():
    model = nets.shaken(adapted())
    plain = logits(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = logits(model)
        loss_of(model).backward()
    assert 0 < gap(rounded.float(), plain) < 0.1 * plain.abs().max()
    assert all(w.grad.dtype == torch.float32 for w in model.parameters() if w.requires_grad)
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert layer.lora_A["default"].weight.dtype == layer.lora_B["default"].weight.dtype == torch.float32
    half = nets.shaken(adapted(llama().bfloat16()))
    assert half(tokens()).logits.dtype == torch.bfloat16
    assert all(w.dtype == torch.float32 for w in half.parameters() if w.requires_grad)
