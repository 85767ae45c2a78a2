"""Circuits as the source of LoRA's weights: all that PEFT's own LoRA does, and ordinary LoRA when saved."""

import copy
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import LlamaForCausalLM

from qnnkit import adapters, layers
from qnnkit.models.blocks import seeded
from qnnkit.train.recompute import recomputing
from tests import nets

# PEFT asks transformers by a name that is going to be changed.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_enable)?` is deprecated:FutureWarning"
)

TARGETS = ["q_proj", "v_proj", "up_proj"]
NEAR = 1e-5
OPTIONS = {
    "quantum_peft": {"n_layers": 2, "r": 2, "n_terms": 3},
    "qpa": {"r": 2, "chunk": 16, "hidden": 4, "n_layers": 2},
}


def llama():
    return nets.llama(1, hidden_size=32, intermediate_size=48).eval()


def adapted(name, base=None, **options):
    given = {"targets": TARGETS, **OPTIONS.get(name, {}), **options}
    return adapters.adapt(base or llama(), name, **given)


def stirred(model, seed=3):
    return nets.shaken(model, seed)


def tokens(seed=0, rows=2):
    return torch.randint(0, 50, (rows, 12), generator=torch.Generator().manual_seed(seed))


def logits(model, given=None):
    with torch.no_grad():
        return model(tokens() if given is None else given).logits


def loss_of(model):
    return model(tokens(), labels=tokens()).loss


def gap(one, other):
    return (one - other).abs().max().item()


@pytest.fixture(params=["quantum_peft", "qpa"])
def name(request):
    return request.param


# --- the beginning ---------------------------------------------------------------------------------


def test_nothing_is_changed_at_the_start(name):
    base = llama()
    before = logits(base)
    model = adapted(name, base)
    assert gap(logits(model), before) == 0
    assert gap(logits(stirred(model)), before) > 1e-3


def test_every_trained_weight_gets_a_gradient_and_nothing_else_does(name):
    model = stirred(adapted(name))
    loss_of(model).backward()
    for key, weight in model.named_parameters():
        assert weight.requires_grad == ("lora_" in key), key
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, key


def test_initial_weights_follow_the_seed_alone(name):
    one, same, other = (adapted(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_the_update_is_the_matrix_between_the_circuits(name):
    """Layer by layer, against the definition in plain loops."""
    from qnnkit.adapters import circuit

    model = stirred(adapted(name)).double()
    layer = model.get_submodule("base_model.model.model.layers.1.mlp.up_proj")
    found = layer.get_delta_weight("default").detach()
    v, u = (part["default"].parametrizations.weight[0] for part in (layer.lora_A, layer.lora_B))
    assert (v.side, u.side, u.layer) == ("lora_A", "lora_B", "model.layers.1.mlp.up_proj")
    if name == "quantum_peft":
        expected = torch.zeros(48, 32, dtype=torch.float64)
        for term, strengths in enumerate(u.strengths.view(3, 2)):
            columns = [circuit.columns(each.angles()[term : term + 1], 2)[0] for each in (u, v)]
            expected += 8 * columns[0][:48] @ torch.diag(strengths) @ columns[1][:32].T
    else:
        numbers = u.circuits.sources[0].generate()
        assert len(numbers) == 2 * 2 * (64 + 64 + 80)
        start = 2 * (64 + 64 + 80) + 2 * (64 + 64)
        a, b = numbers[start : start + 64].view(32, 2), numbers[start + 64 :].view(2, 48)
        expected = (8 * a @ torch.diag(u.gain) @ b / (32**0.5 * 48**0.5)).T
    assert gap(found, expected) < 1e-10 and found.abs().max() > 1e-3


# --- what PEFT's own adapters do -------------------------------------------------------------------


def test_merged_is_the_same_and_classical(name):
    base = llama()
    model = stirred(adapted(name, base))
    before = logits(model)
    merged = model.merge_and_unload()
    assert gap(logits(merged), before) < NEAR
    assert isinstance(merged, LlamaForCausalLM)
    assert not any("qnnkit" in type(module).__module__ for module in merged.modules())
    assert not merged._forward_pre_hooks and not merged._forward_hooks
    assert set(merged.state_dict()) == set(llama().state_dict())


def test_merging_can_be_taken_back(name):
    base = llama()
    bare = logits(base)
    model = stirred(adapted(name, base))
    before = logits(model)
    model.merge_adapter()
    assert gap(logits(model), before) < NEAR
    with model.disable_adapter():
        assert gap(logits(model), bare) < NEAR
    assert gap(logits(model), before) < NEAR
    model.merge_adapter()
    model.unmerge_adapter()
    assert gap(logits(model), before) < NEAR


def test_a_safe_merge_refuses_what_is_not_finite(name):
    model = stirred(adapted(name))
    for key, weight in model.named_parameters():
        if "strengths" in key or "gain" in key:
            weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="broken"):
        model.merge_and_unload(safe_merge=True)


def test_disabled_and_unloaded_is_the_base_model(name):
    base = llama()
    before = logits(base)
    model = stirred(adapted(name, base))
    with model.disable_adapter():
        assert gap(logits(model), before) == 0
    assert gap(logits(model), before) > 1e-3
    bare = model.unload()
    assert gap(logits(bare), before) == 0 and not bare._forward_pre_hooks


def test_two_adapters_take_turns_and_train_on(name, tmp_path):
    model = stirred(adapted(name))
    first = logits(model)
    stirred(adapted(name, targets=["v_proj"], seed=5), seed=4).save_pretrained(tmp_path)
    adapters.load(model, tmp_path, "second", trainable=True)
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all(".second" in key for key in trained)
    second = logits(stirred(model, seed=4))
    assert gap(second, first) > 1e-3
    model.set_adapter("default")
    assert gap(logits(model), first) == 0
    model.base_model.set_adapter(["default", "second"])
    both = logits(model)
    assert gap(both, first) > 1e-3 and gap(both, second) > 1e-3
    model.set_adapter("second")
    model.save_pretrained(tmp_path / "all")
    again = adapters.load(llama(), tmp_path / "all", trainable=True)
    adapters.load(again, tmp_path / "all" / "second", "other")
    assert gap(logits(again), second) < NEAR
    model.set_adapter("default")
    model.delete_adapter("second")
    assert gap(logits(model), first) == 0 and gap(logits(again.merge_and_unload()), second) < NEAR


def test_a_saved_one_is_ordinary_and_its_circuits_train_on(name, tmp_path):
    model = stirred(adapted(name))
    before, slopes = logits(model), gradients(model)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "circuit.safetensors").exists()
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == config["lora_alpha"] == {"qpa": 2}.get(name, 6)
    again = adapters.load(llama(), tmp_path)
    assert gap(logits(again), before) < NEAR and not adapters.count(again)["weights"]
    assert all(type(module).__module__.split(".")[0] != "qnnkit" for module in again.modules())
    light = PeftModel.from_pretrained(llama(), tmp_path, low_cpu_mem_usage=True, is_trainable=True)
    assert gap(logits(light), before) < NEAR
    more = adapters.load(llama(), tmp_path, trainable=True)
    assert gap(logits(more), before) == 0 and adapters.count(more) == adapters.count(model)
    found = gradients(more)
    assert found.keys() == slopes.keys() and all(torch.equal(found[key], slopes[key]) for key in found)


def test_circuits_that_do_not_give_the_weights_beside_them_are_refused(name, tmp_path):
    model = stirred(adapted(name))
    model.save_pretrained(tmp_path)
    kept = (tmp_path / "circuit.safetensors").read_bytes()
    stirred(model, seed=8).save_pretrained(tmp_path)  # as plain PEFT would, which leaves the circuits alone
    changed = logits(model)
    for content, told in ((kept, "it does not give lora_"), (kept[:-9], ""), (b"no", "")):
        (tmp_path / "circuit.safetensors").write_bytes(content)
        base = llama()
        rule = rf"`folder` must hold in circuit\.safetensors the circuits of its weights.*{told}.*remove the"
        with pytest.raises(ValueError, match=rule):
            adapters.load(base, tmp_path, trainable=True)
        assert not hasattr(base, "peft_config")
        assert gap(logits(adapters.load(base, tmp_path)), changed) < NEAR
    (tmp_path / "circuit.safetensors").unlink()
    plain = adapters.load(llama(), tmp_path, trainable=True)
    assert adapters.count(plain)["angles"] == 0 and gap(logits(plain), changed) < NEAR


def test_a_copy_is_a_model_of_its_own(name):
    model = stirred(adapted(name))
    loss_of(model)
    other = copy.deepcopy(model)
    before = logits(model)
    assert gap(logits(other), before) == 0
    stirred(other, seed=9)
    assert gap(logits(model), before) == 0 and gap(logits(other), before) > 1e-3
    after = logits(other)
    assert gap(logits(other.merge_and_unload()), after) < NEAR and gap(logits(model), before) == 0


FRESH = """
    import json, sys
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM
    folder, *names = sys.argv[1:]
    tokens, found = torch.tensor({tokens}), {{}}
    for name in names:
        base = LlamaForCausalLM.from_pretrained(f"{{folder}}/base")
        merged = LlamaForCausalLM.from_pretrained(f"{{folder}}/merged/{{name}}")
        with torch.no_grad():
            adapted = PeftModel.from_pretrained(base, f"{{folder}}/{{name}}").eval()
            found[name] = [model.eval()(tokens).logits.tolist() for model in (adapted, merged)]
    print(json.dumps(found))
    assert "qnnkit" not in sys.modules
"""


def test_a_process_without_qnnkit_reads_it_and_what_it_was_merged_into(tmp_path):
    llama().save_pretrained(tmp_path / "base")
    expected = {}
    for name in OPTIONS:
        model = stirred(adapted(name, LlamaForCausalLM.from_pretrained(tmp_path / "base")))
        expected[name] = logits(model)
        model.save_pretrained(tmp_path / name)
        model.merge_and_unload().save_pretrained(tmp_path / "merged" / name)
    code = textwrap.dedent(FRESH).format(tokens=tokens().tolist())
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path), *OPTIONS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    for name, found in json.loads(ran.stdout).items():
        assert all(gap(torch.tensor(one), expected[name]) < NEAR for one in found), name


# --- controls --------------------------------------------------------------------------------------


def test_without_entanglement_nothing_else_differs(name):
    one, other = adapted(name), adapted(name, entangled=False)
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert adapters.count(one) == adapters.count(other)
    assert gap(logits(stirred(one)), logits(stirred(other))) > 1e-4


def test_with_a_frozen_circuit_only_the_angles_stay(name, tmp_path):
    model, frozen = adapted(name), adapted(name, train_circuit=False)
    angles = adapters.count(model)["angles"]
    assert angles > 0 and adapters.count(frozen) == {
        "weights": adapters.count(model)["weights"] - angles,
        "angles": 0,
    }
    mine, fixed = (
        model.state_dict(),
        {key: value for key, value in frozen.state_dict().items() if "angles" in key},
    )
    assert frozen.state_dict().keys() == mine.keys() and sum(map(torch.numel, fixed.values())) == angles
    assert all(torch.equal(mine[key], value) for key, value in fixed.items())
    frozen.set_adapter("default")
    before = {key: value.clone() for key, value in fixed.items()}
    optimizer = torch.optim.SGD([w for w in frozen.parameters() if w.requires_grad], lr=0.1)
    loss_of(stirred(frozen)).backward()
    optimizer.step()
    after = frozen.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    frozen.save_pretrained(tmp_path)
    again = adapters.load(llama(), tmp_path, trainable=True)
    assert gap(logits(again), logits(frozen)) == 0 and adapters.count(again) == adapters.count(frozen)


def test_angles_are_the_quantum_group(name):
    model = adapted(name)
    kept = {id(weight) for weight in layers.quantum_parameters(model)}
    assert kept == {id(weight) for weight in layers.exchanged_parameters(model)}
    named = {key for key, weight in model.named_parameters() if id(weight) in kept}
    assert named == {key for key in model.state_dict() if ".angles." in key}
    numbers = layers.count_parameters(model)
    assert numbers["quantum"] == adapters.count(model)["angles"]
    assert numbers["quantum"] + numbers["classical"] == adapters.count(model)["weights"]


# --- training --------------------------------------------------------------------------------------


def gradients(model, backward=None):
    model.zero_grad()
    (backward or (lambda: loss_of(model).backward()))()
    return {key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}


def test_gradients_are_differences(name):
    """Of the adapted layers alone: elsewhere a Llama computes in float32, whatever its weights have."""
    model = stirred(adapted(name)).double()
    inputs = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value():
        names = ("0.self_attn.q_proj", "1.mlp.up_proj")
        parts = [model.get_submodule(f"base_model.model.model.layers.{each}") for each in names]
        return sum(part(inputs).square().sum() for part in parts)

    found = gradients(model, lambda: value().backward())
    n_angles = 0
    for key, weight in model.named_parameters():
        if key in found:
            place, step = weight.data.view(-1), 1e-6
            kept = place[-1].item()
            values = []
            for sign in (1, -1):
                place[-1] = kept + sign * step
                values.append(value().item())
            place[-1] = kept
            slope = (values[0] - values[1]) / (2 * step)
            assert abs(slope - found[key].view(-1)[-1].item()) < 1e-5 * max(1, abs(slope)), key
            n_angles += abs(slope) > 1e-3 and "angles" in key
    assert n_angles


def test_gradient_checkpointing_gives_the_same_bits(name):
    model = stirred(adapted(name)).train()
    plain = gradients(model)
    with recomputing(model):
        again = gradients(model)
    assert plain.keys() == again.keys() and all(torch.equal(plain[key], again[key]) for key in plain)
    model.enable_input_require_grads()
    for reentrant in (False, True):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        theirs = gradients(model)
        assert all(gap(plain[key], theirs[key]) < 1e-6 for key in plain)


def test_an_evaluation_between_forward_and_backward_does_no_harm(name):
    model = stirred(adapted(name)).train()
    plain = gradients(model)

    def disturbed():
        with recomputing(model):
            loss = loss_of(model)
        logits(model)
        loss.backward()

    again = gradients(model, disturbed)
    assert all(torch.equal(plain[key], again[key]) for key in plain)


def test_two_passes_and_two_ways_back(name):
    model = stirred(adapted(name))
    plain = gradients(model)

    def twice():
        one, other = loss_of(model), loss_of(model)
        one.backward()
        other.backward()

    again = gradients(model, twice)
    assert all(torch.allclose(2 * plain[key], again[key], rtol=1e-4, atol=1e-7) for key in plain)


def test_weights_that_moved_by_any_means_count_at_once(name):
    model = stirred(adapted(name))
    angles = next(weight for key, weight in model.named_parameters() if "angles" in key)
    layer = next(module for module in model.modules() if isinstance(module, LoraLayer))
    seen = [(logits(model), layer.get_delta_weight("default"))]

    def moved(by):
        by()
        delta = layer.get_delta_weight("default").detach()  # first, for a call makes everything anew
        seen.append((logits(model), delta))
        assert min(gap(seen[-2][0], seen[-1][0]), gap(seen[-2][1], delta)) > 1e-6

    def stopped():
        handle = layer.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loss_of(model)
        handle.remove()
        angles.data[..., 0] += 0.5

    moved(lambda: angles.data.__setitem__(..., angles.data + 0.5))
    moved(lambda: setattr(angles, "data", angles.data + 0.5))
    moved(lambda: angles.data.numpy().__iadd__(0.5))
    moved(
        lambda: model.load_state_dict(
            {key: v + 0.1 for key, v in model.state_dict().items() if "lora_" in key}, strict=False
        )
    )
    moved(stopped)
    with torch.inference_mode():
        assert gap(model(tokens()).logits.clone(), seen[-1][0]) == 0
    loss_of(model).backward()


def test_a_part_of_the_model_may_be_called_by_itself(name):
    model = stirred(adapted(name))
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        layer(x).sum().backward()
    stirred(model, seed=6)
    assert gap(layer(x), layer.base_layer(x)) > 1e-4


def test_circuits_are_evaluated_once_a_step(monkeypatch):
    from qnnkit.adapters import circuit

    calls, plain = [], circuit.columns
    monkeypatch.setattr(circuit, "columns", lambda *given, **named: calls.append(1) or plain(*given, **named))
    model = adapted("quantum_peft")
    calls.clear()
    loss_of(model).backward()
    assert len(calls) == 2  # one for the sides of 32, one for those of 48
    model.generate(input_ids=tokens(), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert len(calls) == 4
    with adapters.once(model), torch.no_grad():
        model(tokens()), model(tokens())
    assert len(calls) == 6
    with model.disable_adapter():
        logits(model)
    assert len(calls) == 6


def test_bfloat16_around_it_leaves_the_circuit_in_float32(name):
    model = stirred(adapted(name))
    plain = logits(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = logits(model)
        loss_of(model).backward()
    assert 0 < gap(rounded.float(), plain) < 0.1 * plain.abs().max()
    assert all(w.grad.dtype == torch.float32 for w in model.parameters() if w.requires_grad)
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        pair = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert all(each.dtype == torch.float32 for each in pair)
    half = stirred(adapted(name, llama().bfloat16()))
    assert half(tokens()).logits.dtype == torch.bfloat16
    assert all(w.dtype == torch.float32 for w in half.parameters() if w.requires_grad)


def test_it_trains_under_accelerate(name):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    model = adapted(name).train()
    quantum = layers.quantum_parameters(model)
    known = {id(weight) for weight in quantum}
    rest = [w for w in model.parameters() if w.requires_grad and id(w) not in known]
    optimizer = torch.optim.Adam([{"params": quantum, "lr": 0.05}, {"params": rest, "lr": 0.05}])
    try:
        accelerator = Accelerator(cpu=True)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = loss_of(prepared)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    assert losses[-1] < losses[0] - 0.05


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("quantum_peft", {"n_layers": 0}, "`n_layers` must be a whole number above 0"),
        ("quantum_peft", {"n_terms": 1.5}, "`n_terms` must be a whole number"),
        ("qpa", {"chunk": -1}, "`chunk` must be a whole number"),
        ("quantum_peft", {"r": 40}, r"`r` must be at most 32, the smaller side of model\.layers\.0"),
        ("qpa", {"targets": ["query"]}, r"`target_modules` must name linear layers .* q_proj, k_proj"),
        ("qpa", {"targets": ["embed_tokens", "q_proj"]}, r"model.embed_tokens \(Embedding\)"),
        ("quantum_peft", {"lora_alpha": 4}, "`options` must be a known name, but is 'lora_alpha'"),
    ],
)
def test_what_makes_no_adapter_leaves_the_model_alone(name, options, rule):
    base = llama()
    with pytest.raises(ValueError, match=rule):
        adapted(name, base, **options)
    assert set(base.state_dict()) == set(llama().state_dict()) and not hasattr(base, "peft_config")


def test_lora_is_left_as_it_was():
    with seeded(0):
        model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    assert adapters.count(model) == {"weights": 2 * 2 * 64, "angles": 0}


def test_a_source_of_ones_own_as_the_page_has_it(monkeypatch, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "adapters.md").read_text()
    [code] = [each for each in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "Waves" in each]
    monkeypatch.setitem(adapters.SOURCES, "waves", None)  # put back afterwards
    exec(code, {})
    model = stirred(adapters.adapt(llama(), "waves", targets=TARGETS, r=3))
    assert "waves" in adapters.names() and adapters.count(model) == {"weights": 54, "angles": 36}
    loss_of(model).backward()
    before = logits(model)
    model.save_pretrained(tmp_path)
    assert gap(logits(adapters.load(llama(), tmp_path)), before) < NEAR
    assert gap(logits(adapters.load(llama(), tmp_path, trainable=True)), before) == 0
    with pytest.raises(NotImplementedError, match="leave n_weights out"):
        adapters.size(llama(), "waves", n_weights=100, targets=TARGETS)


def test_loras_alpha_is_twice_its_rank_unless_it_is_given():
    assert adapters.config("lora", r=3).lora_alpha == 6
    assert adapters.config("lora", r=3, lora_alpha=5).lora_alpha == 5
