"""qnnkit.train.vitals: slow steps and short memory are said once, and nothing else is."""

import pytest

from qnnkit import runs
from qnnkit.runs.status import read
from qnnkit.train import Moment
from qnnkit.train.vitals import EARLY, RECENT, WARMUP, Pace, Vitals, slower

GB = 10**9
CALM = 16 * GB, 8 * GB


def moment(seconds, micro_batch=None):
    return Moment(
        epoch=1,
        epochs=1,
        step=1,
        steps=1,
        updates=1,
        samples=8,
        learning_rate=0.1,
        loss=0.5,
        seconds=seconds,
        micro_batch=micro_batch,
    )


class Machine:
    """A clock that moves with the updates, and a memory that is what is planted."""

    def __init__(self):
        self.time, self.memory, self.told, self.reads = 0.0, CALM, [], 0
        self.vitals = Vitals(self.told.append, "Do this.", clock=lambda: self.time, read=self.read)

    def read(self):
        self.reads += 1
        return self.memory

    def train(self, seconds, each=0.023, micro_batch=None):
        for _ in range(round(seconds / each)):
            self.time += each
            self.vitals.update(moment(each, micro_batch))


def test_steps_that_take_longer_for_a_minute_are_told_once():
    machine = Machine()
    machine.train(200)
    assert machine.told == []
    machine.train(25, each=0.0414)
    assert machine.told == []  # not yet for long enough
    machine.train(300, each=0.0414)
    assert machine.told == [
        "Steps take 1.8x as long as at first (0.0414 s, were 0.023 s): another program, or heat (plug it in)."
    ]


@pytest.mark.parametrize(("pause", "every"), [(5.0, 20.0), (0.4, 1.0)])
def test_pauses_now_and_then_are_no_matter(pause, every):
    """Half a second in each one and a half is not a pause any more; five in twenty-five are."""
    machine = Machine()
    machine.train(100)
    for _ in range(10):
        machine.train(every)
        machine.time += pause
        machine.vitals.update(moment(pause))
    assert machine.told == []


def test_a_slow_beginning_and_a_faster_end_are_no_matter():
    machine = Machine()
    machine.train(10, each=2.0)
    machine.train(300)
    machine.train(300, each=0.01)
    assert machine.told == []


def test_smaller_pieces_begin_the_comparison_anew():
    machine = Machine()
    machine.train(100)
    machine.train(300, each=0.06, micro_batch=8)
    assert machine.told == []
    machine.train(300, each=0.15, micro_batch=8)
    assert machine.told[0].startswith("Steps take 2.5x")


def test_steps_of_minutes_are_compared_too():
    pace = Pace()
    for _ in range(WARMUP + EARLY):
        pace.add(60.0)
    for _ in range(RECENT):
        assert pace.slow() is None
        pace.add(100.0)
    assert pace.slow() == (60.0, 100.0)
    assert "(100 s, were 60 s)" in slower(60.0, 100.0)


def test_short_memory_is_told_once_with_what_to_do_and_looked_at_every_ten_seconds():
    machine = Machine()
    machine.train(60)
    assert machine.reads in (6, 7) and machine.told == []
    machine.memory = 16 * GB, GB // 4
    machine.train(60)
    [sentence] = machine.told
    assert sentence.startswith("Memory is short: 0.2 of 16.0 GB") and sentence.endswith(" Do this.")


def spoken(run):
    """What its machine made a training say."""
    return [row for row in run.rows("metrics") if row["event"] == "warning" and row["of"] == "machine"]


def test_a_training_tells_its_folder_its_status_and_whoever_asked(tmp_path, monkeypatch):
    small = {"epochs": 1, "n_layers": 1, "hidden": 4, "n_seeds": 1, "controls": [], "threads": 1}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **small)
    monkeypatch.setattr("qnnkit.train.vitals.machine.memory", lambda: (16 * GB, GB // 2))
    told = []
    list(runs.train_all(run, on_warning=told.append))
    told = [sentence for sentence in told if "Memory is short" in sentence]  # gradients may warn, too
    [row] = spoken(run)
    assert row["sentence"].startswith("Memory is short: 0.5 of 16.0 GB")
    assert told == [f"hybrid, seed 0: {row['sentence']}"]
    assert row["sentence"] in read(run.folder).warnings
