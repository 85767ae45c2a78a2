"""qnnkit.settings: every setting of every recipe has a description; a wrong one raises one sentence."""

import contextlib
import hashlib
import json
import math
from pathlib import Path

import pytest
from pydantic import create_model

from qnnkit import RECIPES, data, models, recipes, workspace
from qnnkit.adapters.recipe import AdapterSettings
from qnnkit.settings import CRITERIA, PLACEMENT, Recorded, Settings
from tests.toys import refused

LONGEST_DESCRIPTION = 130  # characters; error messages end with it
# A setting takes the first of these that its rule allows and that differs from its value.
VALUES = (
    2, 3, 0.25, 300, True, False, "sgd", "linear", "bfloat16", "float16", "affine", "none", "midi_v2",
    "random", "hardware_efficient", "iqp", "gaussian", "small", "linear",
    ["readout=0.01"], ["hybrid.learning_rate=0.5"], ["frozen_random"],
)  # fmt: skip
ONLY = [("dataset", "text"), ("dataset", "music")]  # settings with a single value


def usual(recipe: str) -> Settings:
    return RECIPES[recipe].settings()


def changed_in(settings: Settings, name: str) -> Settings:
    """The settings with another value of this name."""
    for value in VALUES:
        with contextlib.suppress(ValueError):
            if (changed := settings.override(**{name: value})).flat()[name] != settings.flat()[name]:
                return changed
    raise AssertionError(f"no other value of {name} is tried")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_is_described_and_changes_only_itself(recipe):
    first = usual(recipe)
    before, kind = first.flat(), type(first)
    assert {*CRITERIA} < {*PLACEMENT} < {*before}
    for name in [name for name in kind.model_fields if (name, before[name]) not in ONLY]:
        changed = changed_in(first, name)
        text, after = kind.model_fields[name].description, changed.flat()
        assert text.endswith(".") and "\n" not in text and 10 < len(text) <= LONGEST_DESCRIPTION, name
        assert {key for key in before if before[key] != after[key]} == {name}
        assert first.flat() == before  # the original is unchanged
        placement = name in PLACEMENT
        assert first.difference(changed) == ({} if placement else {name: (before[name], after[name])})
        assert (first.digest() == changed.digest()) == placement
        assert (name in first.chosen(), name in changed.chosen()) == (False, not placement)
        flat = json.loads(json.dumps(after))
        assert flat == after and flat.pop("recipe") == recipe
        assert kind.of(flat) == changed and recipes.settings(recipe, **flat) == changed


def test_a_new_setting_changes_no_digest():
    """Only values that differ from the recipe's defaults are hashed."""
    values = {"recipe": RECIPES["digits_quanv"].digest, "epochs": 3}
    expected = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    assert recipes.settings("digits_quanv", epochs=3, device="cpu").digest() == expected


BAD = [
    ("epochs", 0, "be greater than or equal to 1, but is 0. It means: Passes over"),
    ("epochs", True, "be a number or a text, not true or false, but is True. It means: Passes over"),
    ("batch_size", "many", "be a valid integer"), ("learning_rate", math.nan, "be a finite number, but is"),
    ("split_seed", 2**31, "be less than 2147483648"),
    ("schedule", "cosin", "be 'constant', 'cosine' or 'linear', but is 'cosin'"),
    ("noise", ["depolarising=0.1"], "match pattern"), ("net_settings", ["hybrid.epochs=2"], "match pattern"),
    ("controls", ["classical"] * 2, "name each once, but is ['classical', 'class"),
    ("net_settings", ["a.schedule=linear", "a.schedule=cosine"], "name each once"),
]  # fmt: skip


@pytest.mark.parametrize("recipe", ["letters", "digits_quanv", "resnet_circuit_frozen"])
def test_a_bad_value_gets_one_sentence(recipe):
    """By the rule of the kit, even if a recipe declares the setting again."""
    for name, value, message in BAD:
        with refused(name) as caught:
            usual(recipe).override(**{name: value})
        assert f"Argument `{name}` must {message}" in str(caught.value) and "\n" not in str(caught.value)
        assert type(caught.value) is ValueError  # not pydantic's message, which has four lines
    with refused("learning_rate"):
        usual(recipe).override(net_settings=["hybrid.learning_rate=-1"])


def test_a_number_may_be_auto():
    first = Settings()
    auto = first.override(batch_size="auto", threads="auto")
    assert (auto.flat()["batch_size"], auto.threads) == ("auto", "auto")
    assert auto.digest() == first.override(batch_size="auto", threads=3).digest() != first.digest()
    assert first.threads == "auto" and Settings(threads=None).threads is None
    assert recipes.settings("digits_quanv", threads="auto").threads == "auto", "the recipe itself says 1"


class Mine(RECIPES["digits_quanv"].Settings):
    weights: Path | None = None
    """Their file."""
    shape: tuple[int, ...] = (3, 4)
    words: frozenset[str] = frozenset("abcdefgh")
    name: str | None = None


def test_only_paths_are_moved_with_the_workspace():
    assert Mine().places()[-1] == "weights", "a Path counts too"
    assert Mine.model_fields["weights"].description == "Their file."
    for recipe in RECIPES:
        first = usual(recipe)
        places = first.places()
        assert set(places) == {"data_dir", "pretrained", "tokenizer"} & set(type(first).model_fields)
        moved = first.override(**dict.fromkeys(places, "here")).with_paths(lambda path: f"{path}/there")
        assert first.difference(moved) == {name: (getattr(first, name), "here/there") for name in places}
        assert first.with_paths(workspace.portable) == first, "None stays None"


def test_settings_of_a_user_and_of_a_folder_without_its_recipe():
    mine = Mine.of({"shape": [5], "weights": "a, b/c", "epochs": 2, "name": 123})
    assert mine.flat()["shape"] == [5] and mine.with_paths(str.upper).weights == Path("A, B/C")
    assert mine.flat()["words"] == [*"abcdefgh"], "the order is the same in every process"
    assert mine.name == "123", "a text stays a text"
    with pytest.warns(UserWarning, match="shadows"), refused("setting"):
        create_model("Odd", __base__=Settings, title=(str, "mine"))
    with refused("setting"):  # a column of tables
        create_model("Odd", __base__=Settings, state=(str, "mine"))
    stored = Recorded(epochs=2, shape=[3, 4])  # pyright: ignore[reportCallIssue]
    assert stored.flat()["shape"] == stored.override(epochs=3).flat()["shape"] == [3, 4]
    assert stored.difference(stored.override(epochs=3)) == {"epochs": (2, 3)}
    with refused("recipe"):
        recipes.of(stored)


def test_a_list_may_be_given_as_text():
    """From a YAML file or a cell as well as from --set."""
    texts = {"classical": ("classical",), "classical, no_quantum": ("classical", "no_quantum"), "()": ()}
    for text, names in (texts | {"all": "all"}).items():
        assert Settings.of({"controls": text}).controls == names
    cases = {"5, 6": (5, 6), "['5']": (5,), 5: (5,), "()": ()}
    assert [Mine.of({"shape": given}).shape for given in cases] == [*cases.values()]
    assert recipes.settings("music_llama", composers="bach, mozart").composers == ("bach", "mozart")


def test_kinds_and_families_share_only_names_of_equal_meaning():
    """Recipes combine them, so a name must have one meaning."""
    families = [models.QuanvSettings, models.ResNetSettings, models.ClipSettings, AdapterSettings]
    for kind in (data.Images, data.Captions, data.Text, data.Music):
        for family in (*families, Settings):
            assert not set(kind.model_fields) & set(family.model_fields)
    for family in families:
        assert not set(family.model_fields) & set(Settings.model_fields)
