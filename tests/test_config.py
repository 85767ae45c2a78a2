"""qnnkit.config: every setting says what it means, and a wrong one is refused in one sentence."""

import hashlib
import json
import typing

import pytest

from qnnkit import config
from qnnkit.settings import RunConfig, validate

LONGEST_DESCRIPTION = 130  # characters; it ends a sentence of refusal
BASE = RunConfig(recipe="digits_quanv")
SECTIONS = ("data", "model", "training", "criteria")


@pytest.mark.parametrize("name", config.flat_names())
def test_every_setting_is_described_in_one_line(name):
    told = config.describe(name)
    assert told.endswith(".") and "\n" not in told
    assert 10 < len(told) <= LONGEST_DESCRIPTION


def test_what_a_setting_says_is_all_it_takes():
    assert "training part" in config.describe("validation_fraction")
    assert "archive or address" in config.describe("data_dir")


def test_a_flat_name_means_one_setting():
    top = [name for name in RunConfig.model_fields if name not in SECTIONS]
    inside = [name for section in SECTIONS for name in type(getattr(BASE, section)).model_fields]
    assert len({*top, *inside}) == len(top) + len(inside)
    assert set(config.flat_names()) == {*top, *inside}


SAVING = ("save_every_steps", "save_every_minutes", "keep_checkpoints", "gradient_samples")
MEMORY = ("gradient_checkpointing", "on_oom")
CRITERIA = ("max_memory_gb", "max_epoch_seconds", "min_accuracy", "min_recall", "max_loss")
# One other value per setting; a new setting asks for a line here.
OTHERS = {
    "recipe": "mine", "seed": 7, "n_seeds": 5, "controls": ["frozen_random"], "device": "cpu",
    "backend": "lightning.qubit", "dataset": "class_folder", "data_dir": "/data", "image_size": 16,
    "grey": True, "split_seed": 3, "validation_fraction": 0.1, "test_fraction": 0.3, "model": "other",
    "circuit": "random", "embedding": "iqp", "n_layers": 4, "kernel_size": 3, "stride": 1, "filters": 2,
    "trainable": False, "hidden": 8, "epochs": 2, "batch_size": 8, "learning_rate": 0.5,
    "quantum_learning_rate": 0.25, "optimizer": "sgd", "weight_decay": 0.125, "schedule": "linear",
    "warmup_epochs": 1.5, "clip_norm": 2.0, "quantum_clip_norm": 3.0, "accumulation": 4,
    "precision": "bfloat16", "patience": 6, "label_smoothing": 0.0625, "threads": 2,
    "save_every_steps": 9, "save_every_minutes": 0.75, "keep_checkpoints": 11,
    "gradient_samples": 5, "trackers": ["mlflow"],
    "price_per_hour": 1.75, "train_fraction": 0.5, "label_pattern": "_([a-z]+)$", "download": True,
    "n_qubits": 6, "width": 48, "blocks": 3, "maps": 12, "dropout": 0.375, "pretrained": "folder",
    "stem_stride": 4, "frozen_backbone": True, "augmentation": "affine", "variant": "letters",
    "initialisation": "gaussian", "gradient_checkpointing": True,
    "sequence_length": 32, "vocabulary": 300, "tokenizer": "folder", "part": "^ROMEO$", "composers": ["bach"],
    "transpose": 2, "overlap": 8, "size": "small", "patch_size": 4, "head": "linear", "adapter": "qpa",
    "adapter_weights": 1000, "targets": ["q_proj"], "four_bit": True, "chunk": 16,
    "rank": 4, "alpha": 8.0, "base_precision": "bfloat16",
    "on_oom": "shrink",
    "max_memory_gb": 12.0, "max_epoch_seconds": 90.0, "min_accuracy": 0.95,
    "min_recall": 0.85, "max_loss": 2.5,
}  # fmt: skip


def test_every_setting_is_tried():
    assert set(OTHERS) == set(config.flat_names())


@pytest.mark.parametrize("name", OTHERS)
def test_override_changes_that_setting_alone(name):
    changed = BASE.override(**{name: OTHERS[name]})
    before, after = BASE.flat(), changed.flat()
    assert after[name] == OTHERS[name] != before[name]
    assert {key for key in before if before[key] != after[key]} == {name}
    assert BASE.flat() == before  # the original is left as it was


@pytest.mark.parametrize("name", OTHERS)
def test_difference_names_that_setting_unless_it_is_placement(name):
    changed = BASE.override(**{name: OTHERS[name]})
    found = BASE.difference(changed)
    if name in (
        "device",
        "backend",
        "threads",
        "trackers",
        "price_per_hour",
        "download",
        *SAVING,
        *MEMORY,
        *CRITERIA,
    ):
        assert found == {}
    else:
        assert found == {name: (BASE.flat()[name], OTHERS[name])}


def test_a_setting_that_a_version_adds_changes_no_digest():
    assert RunConfig(recipe="x").digest() == validate({"recipe": "x", "model": {}, "training": {}}).digest()
    told = hashlib.sha256(b'{"epochs": 3, "recipe": "x"}').hexdigest()
    assert RunConfig(recipe="x").override(epochs=3, device="cpu").digest() == told


def test_round_trip_through_json():
    full = BASE.override(**OTHERS)
    assert validate(json.loads(json.dumps(full.model_dump(mode="json")))) == full
    assert json.loads(json.dumps(full.flat())) == full.flat()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("epochs", 2.5, "`epochs` must be a valid integer, got a number with a fractional part, but is 2.5"),
        ("epochs", 0, "`epochs` must be greater than or equal to 1, but is 0. It means: Passes over"),
        ("batch_size", 0, "`batch_size` must be greater than or equal to 1, but is 0"),
        ("batch_size", True, '`batch_size` must be a whole number of at least 1, or "auto", but is True'),
        ("batch_size", "many", '`batch_size` must be a whole number of at least 1, or "auto", but is'),
        ("threads", 0, "`threads` must be greater than or equal to 1, but is 0. It means: CPU threads"),
        ("learning_rate", float("nan"), "`learning_rate` must be a finite number, but is nan"),
        ("learning_rate", float("inf"), "`learning_rate` must be a finite number, but is inf"),
        ("learning_rate", -1.0, "`learning_rate` must be greater than 0, but is -1.0"),
        ("learning_rate", "fast", "`learning_rate` must be a valid number"),
        ("schedule", "cosin", "`schedule` must be 'constant', 'cosine' or 'linear', but is 'cosin'"),
        ("precision", "float64", "`precision` must be 'float32', 'bfloat16' or 'float16', but is 'float64'"),
        ("controls", ["clasical"], "`controls` must be 'classical', 'no_entanglement', 'frozen_random',"),
        ("controls", "classical", "`controls` must be a valid tuple, but is 'classical'"),
        ("controls", ["classical"] * 2, "`controls` must name each net once, but is ['classical', 'class"),
        ("seed", -1, "`seed` must be greater than or equal to 0, but is -1"),
        ("seed", 2**31, "`seed` must be less than 2147483648"),
        ("test_fraction", 1.0, "`test_fraction` must be less than 1, but is 1.0"),
        ("label_smoothing", 1, "`label_smoothing` must be less than 1, but is 1"),
        ("clip_norm", 0, "`clip_norm` must be greater than 0, but is 0"),
        ("image_size", 1, "`image_size` must be greater than or equal to 2, but is 1"),
        ("data_dir", 12, "`data_dir` must be a valid string, but is 12"),
        ("epocs", 2, "must be a known name, but is 'epocs'. Did you mean 'epochs'? The choices are"),
        ("training", {}, "must be a known name, but is 'training'"),
    ],
)
def test_a_bad_value_gets_one_sentence(name, value, told):
    with pytest.raises(ValueError) as caught:
        BASE.override(**{name: value})
    sentence = str(caught.value)
    assert sentence.startswith("Argument `") and told in sentence and "\n" not in sentence
    assert type(caught.value) is ValueError  # not pydantic's own, which prints four lines


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], "`settings` must be a valid dictionary"),
        (None, "`settings` must be a valid dictionary"),
        ({}, "`recipe` must be given, but is None"),
        ({"recipe": "x", "epochs": 3}, "`epochs` must stand in training, but is 3"),
        ({"recipe": "x", "data": {"seed": 3}}, "`seed` must stand in the top level, but is 3"),
        ({"recipe": "x", "model": {"n_layer": 2}}, "Did you mean 'n_layers'?"),
        ({"recipe": "x", "training": {"epochs": 0}}, "`epochs` must be greater than or equal to 1"),
        ({"recipe": "x", "data": 3}, "`data` must be a valid dictionary"),
    ],
)
def test_a_damaged_file_of_settings_gets_one_sentence(values, told):
    with pytest.raises(ValueError) as caught:
        validate(values)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_number_may_be_left_to_be_measured():
    auto = BASE.override(batch_size="auto", threads="auto")
    assert (auto.flat()["batch_size"], auto.threads) == ("auto", "auto")
    assert validate(json.loads(json.dumps(auto.model_dump(mode="json")))) == auto
    assert auto.digest() == BASE.override(batch_size="auto", threads=3).digest() != BASE.digest()
    assert BASE.threads == "auto" and validate({"recipe": "x", "threads": None}).threads is None


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        BASE.training.epochs = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_describe_an_unknown_name():
    with pytest.raises(ValueError, match="Did you mean 'batch_size'"):
        config.describe("batchsize")


def test_every_net_that_controls_can_name_exists():
    import torch

    from qnnkit import layers

    model = torch.nn.Sequential(layers.Quanv2d(1, "hardware_efficient", kernel_size=1, n_layers=1))
    model(torch.zeros(1, 1, 2, 2))
    frozen = torch.nn.Sequential(layers.Quanv2d(1, "random", kernel_size=1, n_layers=1, trainable=False))
    frozen(torch.zeros(1, 1, 2, 2))
    choices = typing.get_args(typing.get_args(RunConfig.model_fields["controls"].annotation)[0])
    choices = set(choices) - {"lora", "vera"}  # of adapters
    assert choices == set(layers.controls(frozen)) == {*layers.controls(model), "classical_trained"}
