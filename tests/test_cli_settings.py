"""What the command line is told: files of settings, nets to train, recipes to begin from."""

import pytest
from typer.testing import CliRunner

from qnnkit import cli, recipes, runs
from qnnkit.cli_settings import asked_for, read_settings


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_later_files_win_and_words_win_over_files(home):
    (home / "machine.yaml").write_text("device: cpu\nthreads: 2\nepochs: 7\n")
    (home / "experiment.yaml").write_text("epochs: 3\nlearning_rate: 1e-3\n")
    files = [home / "machine.yaml", home / "experiment.yaml"]
    recipe, asked = asked_for(home / "run", "digits_quanv", files, ["n_layers=1"], None, epochs=None)
    assert (recipe.name, asked["device"], asked["epochs"], asked["n_layers"]) == ("digits_quanv", "cpu", 3, 1)
    assert recipe.settings(**asked).learning_rate == 1e-3  # YAML reads a text there
    _, asked = asked_for(home / "run", "digits_quanv", files, ["epochs=4"], None, epochs=5)
    assert asked["epochs"] == 5


@pytest.mark.parametrize(
    ("only", "controls"),
    [
        ("hybrid", []),
        ("hybrid,classical", ["classical"]),
        ("no_quantum", ["no_quantum"]),
    ],
)
def test_only_some_nets_are_trained(only, controls, home):
    assert asked_for(home, "digits_quanv", None, None, only)[1]["controls"] == controls


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- 1\n", "must hold lines such as `epochs: 2`"),
        ("recipe: digits_quanv\n", "Use --recipe"),
        ("epochs:\n", "must give a value for `epochs`"),
        ("epochs: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(text, told, home):
    (home / "bad.yaml").write_text(text)
    with pytest.raises(ValueError) as caught:
        read_settings(home / "bad.yaml")
    assert told in str(caught.value) and "bad.yaml" in str(caught.value)


def test_an_unknown_setting_of_a_file_is_refused_with_the_nearest(home):
    (home / "bad.yaml").write_text("epocs: 2\n")
    words = ["run", "--recipe", "digits_quanv", "--run-dir", "runs/a", "--settings", "bad.yaml"]
    told = CliRunner().invoke(cli.app, words)
    assert told.exit_code != 0 and "Did you mean 'epochs'?" in str(told.exception)
    assert not (home / "runs").exists()


def test_a_new_recipe_is_a_working_copy(home):
    told = CliRunner().invoke(cli.app, ["new", "mine.py", "--like", "digits_quanv"]).output
    assert "qnnkit run --recipe mine.py" in told
    run = runs.open_run("runs/a", "mine.py", epochs=1, n_seeds=1, controls=[], train_fraction=0.1)
    assert run.recipe.name == "mine" and run.recipe.digest == recipes.find("digits_quanv").digest
    again = CliRunner().invoke(cli.app, ["new", "mine.py"])
    assert isinstance(again.exception, FileExistsError) and "be a new file" in str(again.exception)


def test_recipes_are_listed_with_their_data_and_first_sentence():
    listed, _, hints = CliRunner().invoke(cli.app, ["recipes"]).output.partition("\n\n")
    lines = listed.splitlines()
    assert "qnnkit plan --recipe NAME" in hints
    assert [line.split()[0] for line in lines] == list(recipes.RECIPES)
    assert "digits" in lines[list(recipes.RECIPES).index("digits_quanv")]
    assert all(line.rstrip().endswith(".") for line in lines)


def test_a_plan_takes_the_words_of_the_run_that_it_is_of(home):
    (home / "mine.yaml").write_text("epochs: 3\nn_seeds: 2\n")
    words = ["plan", "--recipe", "digits_quanv", "--settings", "mine.yaml", "--epochs", "7", "--no-measuring"]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    assert "2 seeds x 7 epochs of" in done.output
