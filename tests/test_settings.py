"""qnnkit.settings: every setting of every recipe says what it means; a wrong one is refused in a sentence."""

import hashlib
import json
from functools import partial
from pathlib import Path

import pytest

import qnnkit
from qnnkit import RECIPES, data, models, recipes, workspace
from qnnkit.adapters.recipe import AdapterSettings
from qnnkit.settings import CRITERIA, MAIN_NETS, PLACEMENT, Recorded, Settings

LONGEST_DESCRIPTION = 130  # characters; it ends a sentence of refusal
# One other value per setting; a new setting asks for a line here.
OTHERS = {
    "seed": 7, "n_seeds": 5, "controls": ["frozen_random"], "device": "cpu",
    "backend": "lightning.qubit", "dataset": "class_folder", "data_dir": "/data", "image_size": 16,
    "grey": False, "split_seed": 3, "validation_fraction": 0.15, "test_fraction": 0.3,
    "circuit": "random", "embedding": "iqp", "n_layers": 4, "kernel_size": 3, "stride": 3, "filters": 2,
    "trainable": False, "hidden": 8, "epochs": 2, "batch_size": 7, "learning_rate": 0.5,
    "quantum_learning_rate": 0.25, "optimizer": "sgd", "weight_decay": 0.125, "schedule": "linear",
    "warmup_epochs": 1.5, "clip_norm": 2.0, "quantum_clip_norm": 3.0,
    "micro_batch": 5,
    "precision": "bfloat16", "patience": 6, "label_smoothing": 0.0625, "threads": 2,
    "save_every_steps": 9, "save_every_minutes": 0.75, "keep_checkpoints": 11,
    "gradient_samples": 5, "trackers": ["mlflow"],
    "price_per_hour": 1.75, "train_fraction": 0.5, "label_pattern": "_([a-z]+)$",
    "n_qubits": 5, "width": 48, "blocks": 3, "maps": 12, "dropout": 0.375, "pretrained": "folder",
    "stem_stride": 1, "frozen_backbone": True, "augmentation": "affine",
    "initialisation": "gaussian", "gradient_checkpointing": True,
    "sequence_length": 32, "vocabulary": 300, "tokenizer": "folder", "part": "^ROMEO$", "composers": ["bach"],
    "transpose": 2, "tokens": "midi_v2",
    "size": "small", "patch_size": 2, "head": "linear", "adapter": "loha",
    "adapter_weights": 1000, "targets": ["q_proj"], "four_bit": True,
    "net_settings": ["hybrid.learning_rate=0.5"], "shots": 100, "noise": ["readout=0.01"],
    "rank": 4, "alpha": 8.0, "base_precision": "bfloat16",
    "max_memory_gb": 12.0, "max_epoch_seconds": 90.0, "min_accuracy": 0.95,
    "min_recall": 0.85, "max_loss": 2.5, "min_difference": 0.02,
}  # fmt: skip
# Where a recipe has that value already.
OTHER_YET = {
    "augmentation": "none", "precision": "float16", "gradient_checkpointing": False, "four_bit": False,
    "base_precision": "float32", "frozen_backbone": False, "epochs": 1, "trainable": True, "grey": True,
    "dataset": "mnist", "image_size": 20, "circuit": "hardware_efficient",
}  # fmt: skip
ONLY = [("text", "dataset"), ("music", "dataset")]  # settings with a single value


def usual(recipe: str) -> Settings:
    return RECIPES[recipe].settings()


def other(recipe: str, name: str):
    """Another value than the recipe's."""
    before = usual(recipe).flat()[name]
    return OTHER_YET[name] if OTHERS[name] == before else OTHERS[name]


def changeable(recipe: str, name: str) -> bool:
    return (usual(recipe).flat()[name], name) not in ONLY


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_is_described_in_one_line(recipe):
    for name in RECIPES[recipe].Settings.model_fields:
        told = RECIPES[recipe].Settings.describe(name)
        assert told.endswith(".") and "\n" not in told, name
        assert 10 < len(told) <= LONGEST_DESCRIPTION, name


def test_every_setting_is_tried():
    assert set(OTHERS) == {name for recipe in RECIPES.values() for name in recipe.Settings.model_fields}


@pytest.mark.parametrize("recipe", RECIPES)
def test_override_changes_that_setting_alone(recipe):
    own = usual(recipe)
    before = own.flat()
    for name in filter(partial(changeable, recipe), RECIPES[recipe].Settings.model_fields):
        value = other(recipe, name)
        changed = own.override(**{name: value})
        after = changed.flat()
        assert after[name] == value != before[name]
        assert {key for key in before if before[key] != after[key]} == {name}
        assert own.flat() == before  # the original is left as it was
        placement = name in PLACEMENT
        assert own.difference(changed) == ({} if placement else {name: (before[name], value)})
        assert (own.digest() == changed.digest()) == placement
        assert (name in own.chosen(), name in changed.chosen()) == (False, not placement)


def test_placement_and_criteria_are_settings_of_every_recipe():
    assert set(PLACEMENT) <= set(Settings.model_fields)
    assert set(CRITERIA) < set(PLACEMENT) and all(name[:4] in ("max_", "min_") for name in CRITERIA)
    assert not set(MAIN_NETS) & {"classical", "no_quantum"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_round_trip_through_json(recipe):
    kind, own = RECIPES[recipe].Settings, usual(recipe)
    names = [name for name in kind.model_fields if changeable(recipe, name)]
    full = own.override(**{name: other(recipe, name) for name in names})
    for settings in (own, full):
        flat = json.loads(json.dumps(settings.flat()))
        assert flat == settings.flat() and flat.pop("recipe") == recipe
        assert kind.of(flat) == settings and recipes.settings(recipe, **flat) == settings


def test_a_setting_that_a_version_adds_changes_no_digest():
    """Only what differs from the recipe's own is hashed."""
    told = {"recipe": RECIPES["digits_quanv"].digest, "epochs": 3}
    expected = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    assert recipes.settings("digits_quanv", epochs=3, device="cpu").digest() == expected


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("epochs", 2.5, "`epochs` must be a valid integer, got a number with a fractional part, but is 2.5"),
        ("epochs", 0, "`epochs` must be greater than or equal to 1, but is 0. It means: Passes over"),
        ("batch_size", True, "`batch_size` must be a number, but is True"),
        ("epochs", True, "`epochs` must be a number, but is True. It means: Passes over"),
        ("batch_size", "many", "`batch_size` must be a valid integer"),
        ("learning_rate", float("nan"), "`learning_rate` must be a finite number, but is nan"),
        ("learning_rate", -1.0, "`learning_rate` must be greater than 0, but is -1.0"),
        ("learning_rate", "fast", "`learning_rate` must be a valid number"),
        ("schedule", "cosin", "`schedule` must be 'constant', 'cosine' or 'linear', but is 'cosin'"),
        ("shots", 0, "`shots` must be greater than or equal to 1, but is 0"),
        ("noise", ["depolarising=0.1"], "`noise` must match pattern"),
        ("noise", ["readout=0.1", "readout=0.2"], "`noise` must name each once"),
        ("controls", ["classical"] * 2, "`controls` must name each once, but is ['classical', 'class"),
        ("seed", 2**31, "`seed` must be less than 2147483648"),
        (
            "test_fraction",
            1.0,
            "`test_fraction` must be a share below 1, or a whole number of samples, but is",
        ),
        ("train_fraction", 2.5, "`train_fraction` must be a share below 1, or a whole number of samples"),
        ("label_smoothing", 1, "`label_smoothing` must be less than 1, but is 1"),
        ("data_dir", 12, "`data_dir` must be a valid string, but is 12"),
        (
            "epocs",
            2,
            "must be a known name, but is 'epocs'. Did you mean 'epochs'? All of them: qnnkit recipes NAME",
        ),
        ("vocabulary", 300, "must be a known name, but is 'vocabulary'"),
        ("net_settings", ["hybrid=2"], "`net_settings` must match pattern"),
        ("net_settings", ["hybrid.epochs=2"], "`net_settings` must match pattern"),
        ("net_settings", ["hybrid.learning_rate=-1"], "Argument `learning_rate` must be greater than 0"),
        ("net_settings", ["a.schedule=linear", "a.schedule=cosine"], "`net_settings` must name each once"),
    ],
)
def test_a_bad_value_gets_one_sentence(name, value, told):
    refusals = [usual("letters").override]  # which declares many of them anew
    refusals += [partial(recipes.settings, recipe) for recipe in ("digits_quanv", "resnet_circuit_frozen")]
    for refused in refusals:
        with pytest.raises(ValueError) as caught:
            refused(**{name: value})
        sentence = str(caught.value)
        assert sentence.startswith("Argument `") and told in sentence and "\n" not in sentence
        assert type(caught.value) is ValueError  # not pydantic's own, which prints four lines


def test_a_number_may_be_left_to_be_measured():
    own = Settings()
    auto = own.override(batch_size="auto", threads="auto")
    assert (auto.flat()["batch_size"], auto.threads) == ("auto", "auto")
    flat = {name: value for name, value in auto.flat().items() if name != "recipe"}
    assert Settings.of(json.loads(json.dumps(flat))) == auto
    assert auto.digest() == own.override(batch_size="auto", threads=3).digest() != own.digest()
    assert own.threads == "auto" and Settings(threads=None).threads is None
    assert recipes.settings("digits_quanv", threads="auto").threads == "auto", "it says 1 itself"


@pytest.mark.parametrize("recipe", RECIPES)
def test_paths_are_known_and_moved_alone(recipe):
    own = usual(recipe)
    places = own.places()
    assert set(places) == {"data_dir", "pretrained", "tokenizer"} & set(type(own).model_fields)
    moved = own.override(**dict.fromkeys(places, "here")).with_paths(lambda path: f"{path}/there")
    assert own.difference(moved) == {name: (getattr(own, name), "here/there") for name in places}
    assert own.with_paths(workspace.portable) == own, "None stays None"


class Mine(qnnkit.Settings):
    weights: Path | None = None
    """Where they lie."""
    shape: tuple[int, ...] = (3, 4)
    name: str | None = None


def test_settings_of_a_users_own():
    assert Mine().places() == ["weights"], "a Path is one, too"
    assert Mine.is_text("name") and Mine.is_text("weights") and not Mine.is_text("shape")
    assert not Mine.is_text("epochs") and not Mine.is_text("nothing")
    own = Mine.of({"shape": [5], "weights": "a/b", "epochs": 2})
    assert own.flat()["shape"] == [5] and own.with_paths(str.upper).weights == Path("A/B")
    assert Mine.describe("weights") == "Where they lie." and Mine.describe("name") == ""
    with pytest.raises(ValueError, match=r"Argument `shape` must be .* but is 'x'"):
        Mine.of({"shape": "x"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("classical", ("classical",)),
        ("classical, no_quantum", ("classical", "no_quantum")),
        ("()", ()),
        ("all", "all"),
    ],
)
def test_a_list_may_be_given_as_its_words(text, names):
    """From a YAML file or a cell as from --set."""
    assert Settings.of({"controls": text}).controls == names
    assert Mine.of({"shape": "5, 6", "name": "a, b"}).name == "a, b", "a text stays one"
    assert Mine.of({"shape": "5, 6"}).shape == (5, 6)


def test_settings_alone_name_no_recipe():
    own = Settings()
    assert own.recipe == "" and own.source is None
    with pytest.raises(ValueError, match="frozen"):
        own.epochs = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="runs only where you name it"):
        recipes.of(own)


def test_what_a_folder_recorded_can_be_read_without_its_recipe():
    kept = Recorded(epochs=2, shape=[3, 4])  # pyright: ignore[reportCallIssue]
    assert kept.flat()["shape"] == [3, 4] and kept.override(epochs=3).flat()["shape"] == [3, 4]
    assert kept.difference(kept.override(epochs=3)) == {"epochs": (2, 3)}


def test_kinds_and_families_share_names_only_where_they_mean_the_same():
    """Recipes mix them, so a name stands for one thing."""
    families = [models.QuanvSettings, models.ResNetSettings, models.ClipSettings, AdapterSettings]
    for kind in (data.Images, data.Captions, data.Text, data.Music):
        for family in families:
            assert not set(kind.model_fields) & set(family.model_fields)
        assert not set(kind.model_fields) & set(Settings.model_fields)
    for family in families:
        assert not set(family.model_fields) & set(Settings.model_fields)
