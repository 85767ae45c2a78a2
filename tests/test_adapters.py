"""Quantum adapters do all that PEFT's own do, and start as nothing."""

import copy
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from qnnkit import adapters, layers
from qnnkit.models.blocks import seeded
from qnnkit.train.recompute import recomputing

# PEFT asks transformers by a name that is going to be changed.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_enable)?` is deprecated:FutureWarning"
)

TARGETS = ["q_proj", "v_proj", "up_proj"]
NEAR = 1e-5
MERGED = ("quantum_peft", "qpa")
OPTIONS = {
    "quantum_peft": {"n_layers": 2, "r": 2, "n_terms": 3},
    "qpa": {"r": 2, "chunk": 16, "hidden": 4, "n_layers": 2},
    "quantum_token": {"n_qubits": 3, "n_layers": 2},
}


def llama():
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    with seeded(1):
        return LlamaForCausalLM(config).eval()


def adapted(name, base=None, **options):
    wanted = adapters.config(name, targets=TARGETS, **(OPTIONS.get(name, {}) | options))
    with seeded(2):
        return get_peft_model(base or llama(), wanted)


def stirred(model, seed=3):
    """The model with every trained weight moved, so that the adapter does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return model


def tokens(seed=0, rows=2):
    return torch.randint(0, 50, (rows, 12), generator=torch.Generator().manual_seed(seed))


def logits(model, given=None):
    with torch.no_grad():
        return model(tokens() if given is None else given).logits


def loss_of(model):
    return model(tokens(), labels=tokens()).loss


def gap(one, other):
    return (one - other).abs().max().item()


@pytest.fixture(params=adapters.NAMES)
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
        assert weight.requires_grad == (f"{name}_" in key), key
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, key


def test_initial_weights_follow_the_seed_alone(name):
    one, same, other = (adapted(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", MERGED)
def test_the_update_is_the_matrix_between_the_circuits(name):
    """Layer by layer, the gradient of the angles included, against the definition in plain loops."""
    from qnnkit.adapters import circuit

    model = stirred(adapted(name)).double()
    layer = model.get_submodule("base_model.model.model.layers.1.mlp.up_proj")
    found = layer.get_delta_weight("default").detach()
    if name == "quantum_peft":
        strengths = layer.quantum_peft_lambda["default"].view(3, 2)
        expected = torch.zeros(48, 32, dtype=torch.float64)
        for term in range(3):
            u = circuit.columns(layer.quantum_peft_angles_out["default"][term : term + 1], 2)[0]
            v = circuit.columns(layer.quantum_peft_angles_in["default"][term : term + 1], 2)[0]
            expected += 8 * u[:48] @ torch.diag(strengths[term]) @ v[:32].T
    else:
        owner = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        numbers = owner.numbers("default", 2 * 2 * (64 + 64 + 80))
        start = 2 * (64 + 64 + 80) + 2 * (64 + 64)
        a, b = numbers[start : start + 64].view(32, 2), numbers[start + 64 :].view(2, 48)
        gain = torch.diag(layer.qpa_gain["default"])
        expected = (8 * a @ gain @ b / (32**0.5 * 48**0.5)).T
    assert gap(found, expected) < 1e-10 and found.abs().max() > 1e-3


# --- what PEFT's own adapters do -------------------------------------------------------------------


@pytest.mark.parametrize("name", MERGED)
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


@pytest.mark.parametrize("name", MERGED)
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


@pytest.mark.parametrize("name", MERGED)
def test_a_safe_merge_refuses_what_is_not_finite(name):
    model = stirred(adapted(name))
    for key, weight in model.named_parameters():
        if "lambda" in key or "gain" in key:
            weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="broken"):
        model.merge_and_unload(safe_merge=True)


def test_a_circuit_of_every_token_cannot_be_merged():
    base = llama()
    bare = logits(base)
    model = stirred(adapted("quantum_token", base))
    before = logits(model)
    for merge in (model.merge_and_unload, model.merge_adapter):
        with pytest.raises(NotImplementedError, match="`adapter` must be one that is a matrix"):
            merge()
    assert gap(logits(model), before) == 0
    assert gap(logits(model.unload()), bare) == 0


def test_disabled_and_unloaded_is_the_base_model(name):
    base = llama()
    before = logits(base)
    model = stirred(adapted(name, base))
    with model.disable_adapter():
        assert gap(logits(model), before) == 0
    assert gap(logits(model), before) > 1e-3
    bare = model.unload()
    assert gap(logits(bare), before) == 0 and not bare._forward_pre_hooks


def test_two_adapters_take_turns(name):
    model = stirred(adapted(name))
    first = logits(model)
    wanted = adapters.config(name, targets=["v_proj"], **OPTIONS[name], seed=5)
    model.add_adapter("second", wanted)
    assert gap(logits(model), first) == 0
    model.set_adapter("second")
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all(".second" in key for key in trained)
    second = logits(stirred(model, seed=4))
    assert gap(second, first) > 1e-3
    model.set_adapter("default")
    assert gap(logits(model), first) == 0
    model.base_model.set_adapter(["default", "second"])
    both = logits(model)
    assert gap(both, first) > 1e-3 and gap(both, second) > 1e-3
    model.delete_adapter("second")
    assert gap(logits(model), first) == 0


def test_save_and_load(name, tmp_path):
    model = stirred(adapted(name))
    before = logits(model)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(llama(), tmp_path, adapter_name="other")
    assert gap(logits(again), before) == 0
    assert not any(weight.requires_grad for weight in again.parameters())
    light = PeftModel.from_pretrained(llama(), tmp_path, low_cpu_mem_usage=True, is_trainable=True)
    assert gap(logits(light), before) == 0
    assert adapters.count(light) == adapters.count(model)


def test_a_copy_is_a_model_of_its_own(name):
    model = stirred(adapted(name))
    loss_of(model)
    other = copy.deepcopy(model)
    before = logits(model)
    assert gap(logits(other), before) == 0
    stirred(other, seed=9)
    assert gap(logits(model), before) == 0 and gap(logits(other), before) > 1e-3


FRESH = """
    import json, sys
    {imports}
    import torch
    from transformers import LlamaForCausalLM
    found = {{}}
    for name in {names}:
        folder = f"{folder}/{{name}}"
        model = {load}
        tokens = torch.tensor({tokens})
        with torch.no_grad():
            found[name] = model.eval()(tokens).logits.tolist()
    print(json.dumps(found))
    assert ("qnnkit" in sys.modules) == ({quantum})
"""


def fresh(**given):
    code = textwrap.dedent(FRESH.format(tokens=tokens().tolist(), **given))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return {name: torch.tensor(values) for name, values in json.loads(ran.stdout).items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with each adapter, its merged model, and the logits of each."""
    folder = tmp_path_factory.mktemp("adapters")
    llama().save_pretrained(folder / "base")
    found = {}
    for name in adapters.NAMES:
        model = stirred(adapted(name, LlamaForCausalLM.from_pretrained(folder / "base")))
        found[name] = logits(model)
        model.save_pretrained(folder / name)
        if name in MERGED:
            model.merge_and_unload().save_pretrained(folder / "merged" / name)
    return folder, found


def test_it_loads_in_a_fresh_process_that_imports_qnnkit(saved):
    folder, expected = saved
    load = f'PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained("{folder}/base"), folder)'
    imports = "import qnnkit; from peft import PeftModel"
    found = fresh(imports=imports, names=adapters.NAMES, folder=folder, load=load, quantum=True)
    assert all(gap(found[name], expected[name]) < NEAR for name in adapters.NAMES)


def test_merged_it_loads_in_a_process_without_qnnkit(saved):
    folder, expected = saved
    load = "LlamaForCausalLM.from_pretrained(folder)"
    found = fresh(imports="", names=MERGED, folder=folder / "merged", load=load, quantum=False)
    assert all(gap(found[name], expected[name]) < NEAR for name in MERGED)


@pytest.mark.parametrize(
    "first",
    ["import peft, qnnkit", "import qnnkit, importlib.util; importlib.util.find_spec('peft'); import peft"],
)
def test_peft_knows_them_whichever_is_imported_first(first):
    code = f"import sys; {first}; from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as known; "
    code += (
        "print('QPA' in known and 'QUANTUM_PEFT' in known, any('qnnkit' in str(f) for f in sys.meta_path))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["True", "False"], ran.stderr


def test_registering_twice_does_nothing():
    adapters.register()
    adapters.register_later()


# --- controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", adapters.NAMES)
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
    mine = {key: value for key, value in model.state_dict().items()}
    fixed = {key: value for key, value in frozen.state_dict().items() if "_fixed" in key}
    assert sum(value.numel() for value in fixed.values()) == angles
    for key, value in fixed.items():
        key = (
            key.replace("_fixed_", "_angles_")
            .replace("qpa_fixed", "qpa_angles")
            .replace("_fixed.", "_circuit.")
        )
        assert torch.equal(mine[key], value)
    frozen.set_adapter("default")
    before = {key: value.clone() for key, value in fixed.items()}
    optimizer = torch.optim.SGD([w for w in frozen.parameters() if w.requires_grad], lr=0.1)
    loss_of(stirred(frozen)).backward()
    optimizer.step()
    after = frozen.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    frozen.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(llama(), tmp_path)
    assert gap(logits(again), logits(frozen)) == 0


def test_angles_are_the_quantum_group(name):
    model = adapted(name)
    kept = {id(weight) for weight in layers.quantum_parameters(model)}
    assert kept == {id(weight) for weight in layers.exchanged_parameters(model)}
    named = {key for key, weight in model.named_parameters() if id(weight) in kept}
    ends = {"quantum_peft": "_angles_", "qpa": "qpa_angles", "quantum_token": "_circuit."}
    assert named == {key for key in model.state_dict() if ends[name] in key}
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
            n_angles += abs(slope) > 1e-3 and ("angles" in key or "circuit" in key)
    assert n_angles


def test_gradient_checkpointing_gives_the_same_bits(name):
    model = stirred(adapted(name)).train()
    plain = gradients(model)
    with recomputing(model):
        again = gradients(model)
    assert plain.keys() == again.keys() and all(torch.equal(plain[key], again[key]) for key in plain)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
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


def test_what_is_kept_without_gradients_follows_the_weights(name):
    model = stirred(adapted(name))
    before = logits(model)
    stirred(model, seed=11)
    changed = logits(model)
    assert gap(changed, before) > 1e-4
    with torch.inference_mode():
        assert gap(model(tokens()).logits.clone(), changed) == 0
    loss_of(model).backward()
    state = {key: value + 0.1 for key, value in model.state_dict().items() if f"{name}_" in key}
    model.load_state_dict(state, strict=False)
    assert gap(logits(model), changed) > 1e-4


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
    loss_of(model).backward()
    assert len(calls) == 2  # one for the sides of 32, one for those of 48
    with torch.no_grad():
        model(tokens()), model(tokens())
    assert len(calls) == 4
    model.generate(tokens(), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert len(calls) <= 6


def test_bfloat16_around_it_leaves_the_circuit_in_float32(name):
    model = stirred(adapted(name))
    plain = logits(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = logits(model)
        loss_of(model).backward()
    assert 0 < gap(rounded.float(), plain) < 0.1 * plain.abs().max()
    assert all(w.grad.dtype == torch.float32 for w in model.parameters() if w.requires_grad)
    if name in MERGED:
        layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            pair = model.base_model.generated.pair(layer, "default")
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


def test_targets_that_match_nothing(name):
    with pytest.raises(ValueError, match=r"`target_modules` must name linear layers .* q_proj, k_proj"):
        get_peft_model(llama(), adapters.config(name, targets=["query"]))


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("quantum_peft", {"n_layers": 0}, "`n_layers` must be a whole number above 0"),
        ("quantum_peft", {"n_terms": 1.5}, "`n_terms` must be a whole number"),
        ("qpa", {"chunk": -1}, "`chunk` must be a whole number"),
        ("quantum_token", {"n_qubits": 0}, "`n_qubits` must be a whole number"),
    ],
)
def test_settings_that_make_no_circuit(name, options, rule):
    with pytest.raises(ValueError, match=rule):
        adapters.config(name, targets=TARGETS, **options)


def test_a_rank_beyond_the_layer():
    with pytest.raises(ValueError, match=r"`r` must be at most 32, the smaller side of model\.layers\.0"):
        adapted("quantum_peft", r=40)


def test_an_unknown_ansatz():
    with pytest.raises(ValueError, match=r"`circuit` must be a known name"):
        adapted("quantum_token", ansatz="angel")


def test_other_layers_are_refused_by_name(name):
    wanted = adapters.config(name, targets=["embed_tokens", "q_proj"], **OPTIONS[name])
    with pytest.raises(TypeError, match=r"model.embed_tokens \(Embedding\)"):
        get_peft_model(llama(), wanted)


def test_lora_is_left_as_it_was():
    with seeded(0):
        model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    assert adapters.count(model) == {"weights": 2 * 2 * 64, "angles": 0}
