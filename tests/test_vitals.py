"""qnnkit.train.vitals: slow steps and short memory are said once, and nothing else is."""

from types import SimpleNamespace

import pytest

from qnnkit import runs
from qnnkit.runs.state import of_run as read
from qnnkit.train import vitals

GB = 10**9


@pytest.fixture
def machine(monkeypatch):
    """Trains for some seconds of updates that take `each`; `told` is what it makes a training say."""
    found = SimpleNamespace(told=[], memory=(16 * GB, 8 * GB), reads=0)

    def memory():
        found.reads += 1
        return found.memory

    monkeypatch.setattr(vitals.machine, "memory", memory)
    watching = vitals.Vitals(found.told.append, "Do this.")

    def train(seconds, each=0.023, micro_batch=None):
        for _ in range(round(seconds / each)):
            watching.update(SimpleNamespace(seconds=each, micro_batch=micro_batch))

    found.train = train
    return found


@pytest.mark.parametrize(
    ("then", "now", "told"), [(0.023, 0.0414, "0.0414 s, were 0.023"), (60, 108, "108 s, were 60")]
)
def test_steps_that_take_longer_for_long_are_told_once(machine, then, now, told):
    machine.train(200 * max(1, then), each=then)
    machine.train(25 * max(1, then), each=now)
    assert machine.told == []  # not yet for long enough
    machine.train(300 * max(1, then), each=now)
    [sentence] = machine.told
    assert sentence.startswith("Steps take 1.8x as long as at first") and told in sentence


@pytest.mark.parametrize(("pause", "every"), [(5.0, 20.0), (0.4, 1.0)])
def test_pauses_now_and_then_are_no_matter(machine, pause, every):
    machine.train(100)
    for _ in range(10):
        machine.train(every)
        machine.train(pause, each=pause)
    assert machine.told == []


def test_a_slow_beginning_and_a_faster_end_are_no_matter(machine):
    machine.train(10, each=2.0)
    machine.train(300)
    machine.train(300, each=0.01)
    assert machine.told == []


def test_smaller_pieces_begin_the_comparison_anew(machine):
    machine.train(100)
    machine.train(300, each=0.06, micro_batch=8)
    assert machine.told == []
    machine.train(300, each=0.15, micro_batch=8)
    assert machine.told[0].startswith("Steps take 2.5x")


def test_short_memory_is_told_once_with_what_to_do_and_looked_at_every_ten_seconds(machine):
    machine.train(60)
    assert machine.reads in (6, 7) and machine.told == []
    machine.memory = 16 * GB, GB // 4
    machine.train(60)
    [sentence] = machine.told
    assert sentence.startswith("Memory is short: 0.2 of 16.0 GB") and sentence.endswith(" Do this.")


def test_a_training_tells_its_folder_its_status_and_whoever_asked(tmp_path, monkeypatch):
    small = {"epochs": 1, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": [], "threads": 1}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **small)
    monkeypatch.setattr(vitals.machine, "memory", lambda: (16 * GB, GB // 2))
    told = []
    list(runs.train_all(run, on_warning=told.append))
    told = [sentence for sentence in told if "Memory is short" in sentence]  # gradients may warn, too
    [row] = [row for row in run.rows("metrics") if row["event"] == "warning" and row["of"] == "machine"]
    assert row["sentence"].startswith("Memory is short: 0.5 of 16.0 GB")
    assert told == [f"hybrid, seed 0: {row['sentence']}"]
    assert row["sentence"] in read(run.folder).warnings
