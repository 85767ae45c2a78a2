"""qnnkit.plan: where to run it, and what helps where it does not fit; predictions by a formula."""

import itertools
from dataclasses import dataclass, replace

import pytest

from qnnkit.plan import machines, places, where
from qnnkit.plan.elsewhere import Estimate, Range, estimate
from qnnkit.plan.places import HERE, Place, Spot, needed, of_table
from qnnkit.plan.prediction import Prediction, Work
from qnnkit.plan.remedies import KINDS, Sight, enough, remedies
from qnnkit.plan.verdict import Wish, judge
from qnnkit.settings import Settings

GB = 10**9
HOUR = 3600.0


# --- a training whose memory is a formula ------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """A workload of known memory: a fixed part, and a part that grows with batch and tokens."""

    training: Settings
    sequence_length: int | None = None
    lora_rank: int | None = None

    def change(self, sequence_length=None, lora_rank=None, **settings):
        return Formula(
            self.training.model_copy(update=settings),
            sequence_length or self.sequence_length,
            lora_rank or self.lora_rank,
        )


def predicted(workload: Formula) -> Prediction:
    """1 GB of weights, 0.1 GB of activations a sample or 128 tokens of it, half of that in half precision."""
    config, tokens = workload.training, workload.sequence_length
    trained = 0.01 if workload.lora_rank else 1.0
    each = 0.1 * (tokens / 128 if tokens else 1)
    again = 2 if config.gradient_checkpointing else 1
    half = 1 if config.precision == "float32" else 2
    memory = {
        "weights": GB,
        "gradients": int(trained * GB),
        "optimizer": int(2 * trained * GB),
        "activations": int(each * (config.micro_batch or config.batch_size) / again / half * GB),
        "data": GB // 2,
        "framework": GB // 2,
    }
    work = Work(
        flops=config.batch_size * 1e9 * (1.3 if config.gradient_checkpointing else 1), bytes=1, operations=10
    )
    return Prediction("net", config, 1000, tokens, 10, 10, memory, work, "cpu", None)


def sight(usable, **others):
    return Sight(predicted, lambda each: each.in_all, usable, **others)


def of(batch_size=64, **others):
    return Formula(Settings(batch_size=batch_size), **others)


# --- remedies ----------------------------------------------------------------------------------------------


def test_remedies_come_in_order_and_each_only_where_it_applies():
    names = [each.name for each in remedies(of(sequence_length=256), sight(GB))]
    assert names == list(KINDS)
    assert [each.name for each in remedies(of(), sight(GB))] == [
        "micro-batches", "checkpointing", "precision", "smaller batch"
    ]  # fmt: skip
    config = Settings(batch_size=3, gradient_checkpointing=True, precision="bfloat16")
    found = remedies(Formula(config, sequence_length=20, lora_rank=4), sight(GB))
    assert [each.name for each in found] == []


def test_micro_batches_keep_the_update_and_takes_the_mildest_dose_that_fits():
    (first, *_) = remedies(of(64), sight(8 * GB))  # 5 GB and 0.1 a sample: 24 fit
    assert dict(first.settings) == {"micro_batch": 16}
    assert first.fits and first.command == "--set micro_batch=16"
    assert (first.before, first.after) == (int(11.4 * GB), int(6.6 * GB))
    already = Formula(Settings(batch_size=64, micro_batch=20))
    assert remedies(already, sight(1))[0].settings == {"micro_batch": 2}


def test_no_remedy_goes_below_two_samples_or_a_quarter_of_a_text():
    found = {each.name: each.settings for each in remedies(of(8, sequence_length=512), sight(1))}
    assert found["micro-batches"] == {"micro_batch": 2}
    assert found["smaller batch"] == {"batch_size": 2}
    assert found["shorter sequences"] == {"sequence_length": 128}


def test_effects_say_what_is_saved_and_what_it_takes():
    timed = sight(8 * GB, seconds=lambda each: each.work.flops)
    found = {each.name: each for each in remedies(of(64), timed)}
    assert found["checkpointing"].effect == "saves 3.2 GB of 11 GB, takes about 30 % longer"
    assert found["micro-batches"].effect == "saves 4.8 GB of 11 GB, takes about as long"
    assert found["checkpointing"].command == "--set gradient_checkpointing=true"
    assert remedies(of(64), sight(8 * GB))[1].effect == "saves 3.2 GB of 11 GB"
    assert found["smaller batch"].as_dict()["slower"] == pytest.approx(1)


def test_what_saves_nothing_is_not_named():
    small = Formula(Settings(batch_size=2), sequence_length=32)
    assert [each.name for each in remedies(small, sight(GB))] == ["LoRA"]


def test_one_remedy_is_enough_or_as_many_as_it_takes_or_none():
    wide = sight(8 * GB)
    assert [each.name for each in enough(of(64), wide, remedies(of(64), wide))] == ["micro-batches"]
    text, tight = of(64, sequence_length=512), sight(3 * GB)
    chain = enough(text, tight, remedies(text, tight))
    assert [each.name for each in chain] == ["micro-batches", "checkpointing", "shorter sequences", "LoRA"]
    assert all(later.before == earlier.after for earlier, later in itertools.pairwise(chain))
    assert chain[-1].fits and not any(each.fits for each in chain[:-1])
    assert predicted(chain[-1].workload).in_all == chain[-1].after
    assert enough(text, sight(GB), remedies(text, sight(GB))) == []


def test_nothing_is_looked_at_twice():
    asked = []

    def look(workload):
        asked.append((workload.training, workload.sequence_length, workload.lora_rank))
        return predicted(workload)

    seen = replace(sight(3 * GB), predict=look)
    enough(of(64, sequence_length=512), seen, remedies(of(64, sequence_length=512), seen))
    assert len(asked) == len(set(map(str, asked)))


# --- places ------------------------------------------------------------------------------------------------


@pytest.fixture
def table(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return machines.load()


def test_a_gpu_holds_what_it_computes_on_and_other_machines_all():
    found = predicted(of(10))
    assert needed(found, "cpu") == needed(found, "mac") == needed(found, "cuda") + GB


def beside(spot, prediction, seconds=None, wish=None, trainings=1, memory=None):
    updates = seconds and Estimate(Range.within(seconds, 2), "cuda", "published")
    wish = wish or Wish()
    return places.place(
        spot, prediction, updates, trainings=trainings, wish=wish, currency="USD", memory=memory
    )


def test_times_and_costs_follow_from_one_update():
    """1,000 samples in batches of 10, 20 epochs, 15 nets, a tenth of a second each: 50 minutes."""
    found = beside(Spot("x", "cuda", 15 * GB, 0.6, 2.0), predicted(of(10)), 0.1, trainings=15)
    assert found.epoch.likely == pytest.approx(10)
    assert (found.total.low, found.total.likely) == pytest.approx((1500, 3000))
    assert found.cost.likely == pytest.approx(0.6 * 3000 / 3600)
    assert found.compute_units.high == pytest.approx(2 * 2.0 * 3000 / 3600)
    assert found.basis == "published" and found.device == "cuda"


def test_an_epoch_has_as_many_updates_as_batches():
    config = Settings(batch_size=40, micro_batch=10)
    assert beside(Spot("x", "cuda", GB), predicted(Formula(config)), 0.4).epoch.likely == pytest.approx(10)


def test_what_is_not_timed_still_costs_nothing_where_nothing_is_paid():
    found = beside(Spot("x", "cpu", 15 * GB, 0.0), predicted(of(10)))
    assert (found.total, found.cost, found.basis) == (None, Range(0, 0, 0), "not timed")
    assert beside(Spot("x", "cuda", 15 * GB, 1.0), predicted(of(10))).cost is None


def test_the_largest_batch_is_sought_for_each_kind_of_machine():
    def memory(size):
        return predicted(of(size))

    assert beside(Spot("x", "cuda", 15 * GB), predicted(of(10)), memory=memory).largest == 102
    assert beside(Spot("x", "mac", 15 * GB), predicted(of(10)), memory=memory).largest == 92
    assert beside(Spot("x", "mac", 2 * GB), predicted(of(10)), memory=memory).largest == 0
    assert beside(Spot("x", "cuda", 15 * GB), predicted(of(10))).largest is None


def test_every_row_of_the_table_is_a_machine(table):
    found = of_table(table, {})
    assert [spot.name for spot, _ in found] == list(table.shown)
    (t4,) = [spot for spot, _ in found if spot.name == "T4"]
    assert (t4.usable, t4.kind) == (15 * GB, "cuda") and t4.price_per_hour > 0


def test_a_survey_of_a_row_goes_before_what_is_published(table):
    from qnnkit.plan.elsewhere import Figures

    measured = [Figures("cuda:0", {"float32": 5e12}, 2e11, 1e-5, measured=True)]
    figures = dict((spot.name, figures) for spot, figures in of_table(table, {"T4": measured}))
    assert figures["T4"] == measured and not figures["L4"][0].measured
    work = Work(1e12, 1e9, 100)
    assert estimate(work, "float32", figures["T4"], 1.0).basis == "from its survey"


# --- where -------------------------------------------------------------------------------------------------


def at(name, hours=None, cost=0.0, needs=1.0, usable=10.0, wish=None):
    """A machine with its training, range a factor 2 both ways."""
    total = None if hours is None else Range.within(hours * HOUR, 2)
    price = None if cost is None else Range.within(cost, 2)
    verdict = judge(needs * GB, usable * GB, total, price, wish)
    units = None if not cost else price.times(10)
    memory = (int(needs * GB), int(usable * GB))
    return Place(name, "cuda", "cuda", "published", *memory, None, None, total, price, units, verdict)


def told(found, wish=None, enough=()):
    return where.answer(found, wish or Wish(), "USD", enough)


def test_here_where_it_costs_nothing():
    found = [at(HERE, 2.1), at("Mac 8 GB", 1), at("L4", 0.2, 0.1)]
    assert told(found)[0] == "Run it here: about 2.1 h (1.1 to 4.2), which costs nothing."


def test_cheapest_first_then_quickest_and_this_machine_before_its_equals():
    found = [at(HERE, 3), at("Mac", 1), at("T4", 2, 0.5), at("L4", 1, 0.5), at("A100", 0.1, None)]
    assert [each.name for each in where.in_order(found)] == [HERE, "Mac", "L4", "T4", "A100"]


def test_what_is_clearly_quicker_is_offered_with_its_price():
    found = [at(HERE, 20), at("T4", 9, 1), at("H100 80 GB", 1, 4)]
    units = "(40 of Colab's compute units)"
    about = f"about 60 min (30 to 120) and 4.00 USD {units}"
    assert told(found)[1] == f"Quicker, at a price: the H100 80 GB, {about}."
    assert len(told([at(HERE, 20), at("T4", 9, 1)])) == 1  # the ranges overlap


def test_a_deadline_sends_it_elsewhere():
    wish = Wish(deadline=8 * HOUR, budget=10)
    found = [at(HERE, 30, wish=wish), at("T4", 9, 0.5, wish=wish), at("L4", 2.1, 1.0, wish=wish)]
    assert told(found, wish) == [
        "Run it on an L4: about 2.1 h (1.1 to 4.2) and 1.00 USD (10 of Colab's compute units).",
        "Not on this machine: it takes about 30 h, over the deadline of 8.0 h.",
    ]


def test_a_marginal_answer_says_so():
    wish = Wish(deadline=3 * HOUR)
    found = [at(HERE, 9, wish=wish), at("A100", 2, 1, wish=wish)]
    assert "That is marginal: it may go up to 4.0 h, over the deadline of 3.0 h." in told(found, wish)[0]
    assert told(found, wish)[0].startswith("Run it on an A100:")


def test_a_budget_of_nothing():
    wish = Wish(budget=0)
    paid = [at("T4", 1, 0.1, wish=wish), at("L4", 1, 0.2, wish=wish)]
    assert told([at(HERE, 20, wish=wish), *paid], wish)[0].startswith("Run it here")
    found = told([at(HERE, 20, needs=20, wish=wish), *paid], wish)
    assert found[0] == "No machine of the table does it for 0 USD."
    assert "With more money it does: the T4 costs about 0.10 USD and takes about 60 min (30 to 120)." in found


def test_where_nothing_does_it_more_time_or_more_money_is_named():
    wish = Wish(deadline=1 * HOUR, budget=1)
    found = [at(HERE, 30, wish=wish), at("T4", 9, 0.9, wish=wish), at("H100", 0.5, 4, wish=wish)]
    assert told(found, wish) == [
        "No machine of the table does it in 60 min for 1.00 USD.",
        "Not on this machine: it takes about 30 h, over the deadline of 60 min.",
        "With more time it does: the T4 takes about 9.0 h (4.5 to 18) and 0.90 USD "
        "(9.0 of Colab's compute units).",
        "With more money it does: the H100 costs about 4.00 USD and takes about 30 min (15 to 60).",
    ]


def test_where_it_fits_nowhere_its_need_is_set_beside_the_largest_memory():
    found = [at(HERE, needs=200), at("H100", 1, 1, needs=190, usable=79)]
    assert told(found)[0] == "No machine of the table does it."
    assert told(found)[-1] == "It fits nowhere: it needs 190 GB, and the H100 lets it use 79 GB."


def test_what_would_make_it_fit_here_is_what_to_type():
    wide = sight(8 * GB)
    chain = enough(of(64), wide, remedies(of(64), wide))
    found = told([at(HERE, needs=11.4, usable=8), at("T4", 1, 1)], enough=chain)
    assert found[-1] == "To fit it on this machine: --set micro_batch=16 (11 GB become 6.6 GB)."


def test_times_that_are_not_known():
    assert told([at(HERE)])[0] == "Run it here: its time is not known."
    wish = Wish(deadline=HOUR)
    assert "it has no known time" in told([at(HERE, wish=wish)], wish)[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [("L4", "an L4"), ("T4", "a T4"), ("A100 40 GB", "an A100"), ("H100", "an H100"), ("Mac 8 GB", "a Mac")],
)
def test_names_are_said_as_people_say_them(name, said):
    assert told([at(name, 1, 1)])[0].startswith(f"Run it on {said}")
