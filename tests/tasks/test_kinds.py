"""Runs on captions and text: training, comparison, planning, figures and plain files."""

import dataclasses
import re
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from qnnkit import layers, measure, recipes, report, runs, tasks, workspace
from qnnkit.runs import nets
from tests.same import same
from tests.toys import texts, trained

TEXT = {"sequence_length": 16, "vocabulary": 260, "train_fraction": 0.5, "batch_size": 8, "epochs": 1}
TEXT |= {"split_seed": 3}  # each split has texts of both authors
HERE = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with texts of two authors."""
    root = tmp_path_factory.mktemp("kinds")
    for author in ("ann", "bob"):
        texts(workspace.make_folder(root / "text" / author))
    return root


@pytest.fixture(scope="module")
def base(home):
    """A language model trained on text, with its report."""
    run = trained(home / "base", "text_llama", data_dir=str(home / "text"), **HERE, **TEXT)
    report.finish(run)
    return run


@pytest.fixture(scope="module")
def given(home, base):
    """Settings of an adapter on that model and the same text."""
    given = {name: value for name, value in TEXT.items() if name != "vocabulary"}
    return given | {"data_dir": str(home / "text"), "pretrained": str(base.folder / "model")}


@pytest.fixture(scope="module")
def adapted(home, given):
    """A quantum adapter on it, and its controls."""
    small = {"part": "ann/", "adapter_weights": 3000, "n_seeds": 1}
    run = trained(home / "adapted", "text_adapter", **small, **HERE, **given)
    report.finish(run)
    return run


# --- captions ----------------------------------------------------------------------------------------------


def test_clip_is_compared_by_recall_and_plotted(tmp_path):
    small = {"n_qubits": 2, "n_layers": 1, "patch_size": 8, "train_fraction": 0.1, "n_seeds": 1, "epochs": 1}
    small |= {"sequence_length": 9, "controls": ["classical"]}
    clip = trained(tmp_path / "run", "digits_clip", batch_size=32, **HERE, **small)
    assert clip.nets == ("hybrid", "classical") and clip.score.name == "recall_1"
    longest = runs.build(clip, "hybrid", 0).net.config.text_config.max_position_embeddings
    assert longest == clip.splits.tokenizer.model_max_length == 9
    _, counts = report.preview(clip)
    assert counts.loc["train", "images"] == 108
    space = tasks.contrastive.embed(runs.trained(clip), clip.splits)
    cosines = space.images @ space.texts.T
    lead = cosines.amax(1) - cosines.masked_fill(~space.right, -9).amax(1)  # 0 where the nearest is right
    [figure] = report.mistakes(clip, 3)
    assert sum(bool(axis.images) for axis in figure.axes) == min(3, int((lead > 0).sum())) > 0
    worst = clip.splits.test.images[int(lead.argmax()), 0].numpy()
    assert (figure.axes[0].images[0].get_array() == worst).all()
    assert {path.stem for path in (clip.folder / "figures").iterdir()} >= {"01_captions", "06_worst"}
    assert report.finish(clip)["score"] == "recall_1"
    page = clip.report.read_text()
    assert "zero-shot accuracy (%)" in page and "test recall@1 (%)" in page


# --- text --------------------------------------------------------------------------------------------------


def test_a_language_model_learns_and_is_compared_by_its_loss(base, home):
    assert base.nets == ("reference",) and base.score.larger is False
    [row] = report.summary(base)
    assert row["score"] < 0.95 * torch.tensor(260.0).log(), "no better than a guess among all tokens"
    assert row["perplexity"] == pytest.approx(float(torch.tensor(row["score"]).exp()), rel=1e-4)
    [table] = report.mistakes(base, 2)
    assert list(table) == ["given", "the net writes"] and len(table) == 2
    begun, counts = report.preview(base)
    assert begun["from"].str.contains("ann|bob").all() and begun["begins"].str.len().min() > 0
    assert counts.loc["train", "tokens"] == len(base.splits.train) * 15


def test_adapters_are_compared_with_equally_large_controls_and_their_base(adapted, base):
    assert adapted.nets == ("hybrid", "lora", "vera", "no_entanglement", "frozen_random")
    finals = runs.frame(adapted).set_index("net")
    trains = finals["quantum"] + finals["classical"]
    assert trains["hybrid"] == trains["no_entanglement"] > trains["frozen_random"]
    assert trains["hybrid"] == pytest.approx(3000, rel=0.05)
    assert trains["vera"] == pytest.approx(3000, rel=0.01)
    assert trains["lora"] == 6 * 512, "another rank is closer than 6"
    assert finals["quantum"]["hybrid"] > 0 == finals["quantum"]["lora"]
    assert len(adapted.result["comparisons"]) == 4 and base.result["adapter"] is None
    [table] = report.mistakes(adapted, 1)
    assert list(table) == ["given", "the base writes", "the net writes"]
    before = tasks.Language().loss(runs.trained(base).eval(), adapted.splits)
    expected = {"before": pytest.approx(before, abs=1e-5), "after": finals.loc["hybrid", "test_loss"]}
    assert adapted.result["adapter"]["loss"] == expected
    page = adapted.report.read_text()
    assert "Compared with the base alone" in page and f"<td>{before:.3f}</td>" in page


def test_each_seed_has_new_initial_weights_shared_by_its_controls(adapted):
    def start(net, seed):
        state = runs.build(adapted, net, seed).state_dict()
        return {name: weight for name, weight in state.items() if ".base_layer." not in name}

    nets = {(net, seed): start(net, seed) for net in adapted.nets for seed in (0, 1)}
    for net in adapted.nets:
        one, other = nets[net, 0], nets[net, 1]
        assert same(one, start(net, 0)), net
        drawn = "".join(name for name in one if not torch.equal(one[name], other[name]))
        assert any(word in drawn for word in ("angles", "lora_A", "vera_A")), net
    assert same(nets["hybrid", 1], nets["no_entanglement", 1])


def test_a_requested_rank_is_the_rank_of_the_circuit(adapted):
    run = dataclasses.replace(adapted, config=adapted.config.override(rank=3))
    assert runs.build(run, "hybrid", 0).circuits["default"].config.r == 3
    assert runs.build(run, "lora", 0).peft_config["default"].r == 6, "its weights set its rank"


def test_a_base_in_half_precision_and_one_in_four_bits_without_cuda(given, tmp_path):
    """The notes report it, and the run continues without."""
    small = {**given, "gradient_checkpointing": False, "micro_batch": None, "train_fraction": 0.1}
    small |= {"rank": 2, "alpha": 6.0, **HERE}
    run = trained(tmp_path / "half", "llama_mac", **small, base_precision="bfloat16")
    net = runs.trained(run)
    assert (net.peft_config["default"].r, net.peft_config["default"].lora_alpha) == (2, 6.0)
    weights = [*net.parameters()]
    assert {each.dtype for each in weights if each.requires_grad} == {torch.float32}
    assert {each.dtype for each in weights if not each.requires_grad} == {torch.bfloat16}
    sentence = "Weights are in float32, not in 4 bits: 4 bits need a CUDA device, and this is cpu."
    with pytest.warns(UserWarning, match=sentence):
        full = trained(tmp_path / "full", "llama_mac", **small, four_bit=True)
    assert runs.frame(run)["test_loss"][0] == pytest.approx(runs.frame(full)["test_loss"][0], rel=0.02)
    assert full.provenance["notes"].count(sentence) == 1


def test_an_adapter_on_four_bits_is_merged_onto_the_base_in_float32(adapted, tmp_path):
    """The base belongs to a run outside of the workspace; its path is relative to the adapter."""
    named = workspace.read_json(adapted.folder / "adapter" / "adapter_config.json")
    assert named["base_model_name_or_path"] == "../../base/model"
    four, ids = adapted.config.override(four_bit=True), adapted.splits.test.input_ids[:1]
    runs.merge(dataclasses.replace(adapted, config=four), tmp_path / "four")
    with torch.no_grad():
        expected = runs.trained(adapted)(input_ids=ids).logits
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "four")(input_ids=ids).logits
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_plan_counts_the_precision_of_a_base_and_loads_no_4_bit_weights(given, base, monkeypatch):
    def planned(**more):
        asked = runs.to_plan("llama_t4", {**given, **more}, timed=False)
        return measure.predict(asked["workload"], measured=False)

    half, full = (planned(four_bit=False, base_precision=each) for each in ("float16", "float32"))
    n_frozen = sum(weight.numel() for weight in runs.trained(base).parameters())
    assert full.memory["weights"] - half.memory["weights"] == 2 * n_frozen
    reader = sys.modules["qnnkit.models.causal_lm"]
    monkeypatch.setattr(reader, "causal_lm", None)  # would fail if called
    four = planned()
    # tiny: two layers of four 64 x 64 matrices and three 64 x 128; not embedding, norms and head
    linear = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    saved = round(linear * (2 - 0.516) - (n_frozen - linear) * (4 - 2))  # the rest in float32
    assert four.less_on_cuda == saved and half.less_on_cuda == 0
    assert half.on_accelerator - four.on_accelerator == pytest.approx(saved, rel=0.02), "two traces"
    assert half.memory["weights"] == four.memory["weights"]
    assert any(f"{linear:,} frozen weights are counted in 4 bits" in note for note in four.notes)


def test_parameters_are_counted_and_large_nets_planned_without_weights(adapted, tmp_path, monkeypatch):
    counts = {net: layers.count_parameters(runs.build(adapted, net, 0)) for net in adapted.nets}
    monkeypatch.setattr(nets, "SHARE", 0.0)
    monkeypatch.setattr(sys.modules["qnnkit.measure.predict"], "SHARE", 0.0)
    made = recipes.made

    def counted(*args, bare=False):
        net = made(*args, bare=bare)
        assert all(weight.is_meta for weight in net.parameters()), "built only for the trial"
        return net

    monkeypatch.setattr(recipes, "made", counted)
    assert counts == {net: layers.count_parameters(runs.build(adapted, net, 0, bare=True)) for net in counts}
    free = {"device": "auto", "threads": "auto", "batch_size": 1, "controls": ["lora"]}
    fresh = runs.Run(tmp_path, adapted.config.override(**free))
    plan = measure.plan(**runs.to_plan(fresh))
    assert "a trial would hold" in fresh.provenance["placement"]["sentence"]
    assert plan.places[0]["basis"] == "estimated" and plan.places[0]["in_all"] > 0
    assert any("A step was too large to time here" in note for note in plan.notes)
    assert plan.prediction.n_trained < 0.05 * plan.prediction.n_weights
    assert plan.prediction.memory["checkpoint"] < 0.2 * plan.prediction.memory["weights"]


# --- errors ------------------------------------------------------------------------------------------------


WRONG = [
    ("digits_clip", {"dataset": "digits"}, "`dataset` must be a dataset of captions, which"),
    ("text_adapter", {"controls": ["classical"], "pretrained": "BASE"}, "The choices are lora, vera, no_"),
    ("text_adapter", {"adapter": "lora", "pretrained": "BASE"}, "Set controls=() for an adapter without"),
    ("text_adapter", {}, "`pretrained` must name the weights that an adapter changes, but is None."),
    ("text_llama", {"controls": ["lora"]}, "A net without a QuantumLayer has no controls"),
    ("text_llama", {"pretrained": "/nowhere/model"}, "`pretrained` must be a folder or hub name"),
    ("captions_clip", {"data_dir": None}, "`data_dir` must"),
    ("digits_clip", {"head": "full"}, "`controls` must be () for a head without a circuit"),
]


@pytest.mark.parametrize(("recipe", "settings", "words"), WRONG)
def test_settings_that_do_not_fit_raise_an_error(home, given, tmp_path, recipe, settings, words):
    asked = ({"data_dir": str(home / "text")} if recipe.startswith("text") else {}) | settings
    if asked.get("pretrained") == "BASE":
        asked |= {"pretrained": given["pretrained"], "sequence_length": 16}
    with pytest.raises((ValueError, OSError), match=rf"^.*{re.escape(words)}.*\Z"):
        runs.open_run(tmp_path / "run", recipe, **asked)
    assert not (tmp_path / "run" / "config.json").exists()
