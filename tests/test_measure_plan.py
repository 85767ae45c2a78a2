"""qnnkit.measure.plan: real nets planned, verdicts, remedies, and what is typed answered or refused."""

import importlib
import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnkit import measure, runs, train, words
from qnnkit.checkpoint import weights
from qnnkit.measure import device_figures, elsewhere
from qnnkit.measure.elsewhere import HERE, Range
from qnnkit.measure.memory import trace
from qnnkit.measure.remedies import REMEDIES, Remedies
from qnnkit.measure.workload import ModelSettings
from qnnkit.settings import Settings
from tests.toys import refused, typing

predicting = importlib.import_module("qnnkit.measure.predict")  # the package's attributes are the functions
planning = importlib.import_module("qnnkit.measure.plan")
Place, Wish, answer, judge = planning.Place, planning.Wish, planning.answer, planning.judge
GB, HOUR = 10**9, 3600.0
SMALL = (64, 2, 4, 4, 172, 500)  # hidden, layers, heads (twice), inner, vocabulary


def llama(**settings):
    asked = {"batch_size": 2, "optimizer": "adamw", "sequence_length": 32, **settings}
    return measure.of_transformer("llama", "small", **asked)


@pytest.fixture(scope="module", autouse=True)
def brief():
    """Measuring takes a moment, and nobody else is at work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_figures, "ARRAY", 2**22)
        patch.setattr(device_figures, "LONG_ENOUGH", 1e-4)
        patch.setattr(planning, "load", lambda: 0.0)
        patch.setitem(importlib.import_module("qnnkit.models.causal_lm").LLAMA, "small", SMALL)
        yield


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """An empty workspace."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def digits():
    return runs.to_plan("digits_quanv", {"epochs": 50}, timed=False)


@pytest.fixture(scope="module")
def planned(tmp_path_factory, digits):
    """The plan of a small recipe, times measured for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        return measure.plan(**digits, deadline="8h", budget="10", seconds=0.1)


# --- one net, on this machine ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"lora_rank": 64}], ids=["plain", "lora_rank"])
def test_checkpoints_take_the_disk_that_is_counted(tmp_path, change):
    workload = llama(epochs=4, batch_size=8, **change)
    config = workload.training
    model = workload.build(config, False)
    loaders = {split: workload.loader(1) for split in ("train", "validation")}
    built = weights.Built(weights.digest(model), lambda: model)
    groups = workload.groups(model, config)
    train.fit(model, workload.task, loaders, config, groups=groups, folder=tmp_path, built=built)
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoint-*")]
    found = measure.predict(workload, measured=False)
    more = 2**16  # names and random states
    assert found.checkpoint < max(sizes) < found.checkpoint + more and found.checkpoint > 5 * more
    assert len(sizes) <= config.keep_checkpoints + 1 and sum(sizes) < found.disk + 3 * more


def test_predictions_add_up(digits, monkeypatch):
    workload = digits["workload"]
    found = measure.predict(workload, seconds=0.1, n_threads=1)
    assert found.peak == found.in_all == sum(found.memory.values()) > found.on_accelerator > 0
    assert found.memory["framework"] > 100 * 2**20 and found.memory["data"] == workload.data_bytes
    assert found.seconds and found.seconds.least <= found.seconds.median <= found.seconds.most
    assert found.scaled_from is None
    each = found.n_samples / workload.training.batch_size
    assert found.seconds_per_epoch == pytest.approx(each * found.seconds.median)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["training"]["batch_size"] == 32 and plain["peak"] == found.peak
    monkeypatch.setattr(train, "fit", None)  # nothing is run where only memory is asked
    again = measure.predict(workload, measured=False, framework=found.memory["framework"])
    assert again.seconds is None and again.seconds_per_epoch is None
    assert again.memory == {name: n for name, n in found.memory.items() if name != "workspace"}


def test_float16_is_planned_where_it_cannot_be_trained(digits):
    workload = digits["workload"].change(precision="float16")
    found = measure.plan(**digits | {"workload": workload}, largest=False)
    assert found.prediction.seconds is None and any("float16" in note for note in found.notes)
    assert found.prediction.peak > 0 and found.on_this_machine.basis == "not timed"


def test_what_would_not_fit_is_timed_at_a_smaller_batch(digits, monkeypatch):
    workload = digits["workload"].change(batch_size=2)
    free = 2 * sum(trace(workload.change(batch_size=1)).memory.values()) + 1
    monkeypatch.setattr(predicting, "free", lambda device: free)
    found = measure.predict(workload, seconds=0.1, n_threads=1)
    assert found.scaled_from == 1 and found.seconds
    monkeypatch.setattr(predicting, "free", lambda device: 0)
    assert measure.predict(workload, seconds=0.1, n_threads=1).seconds is None


def test_four_bits_are_for_frozen_weights_alone():
    asked = (llama(lora_rank=4, four_bit=four_bit) for four_bit in (True, False))
    saved, usual = (measure.predict(each, measured=False) for each in asked)
    hidden, n_layers, *_, inner, _ = SMALL
    linear = n_layers * hidden * (4 * hidden + 3 * inner)  # embedding, norms and head stay
    assert saved.less_on_cuda == round(3.484 * linear) and usual.less_on_cuda == 0
    assert usual.on_accelerator - saved.on_accelerator == saved.less_on_cuda


# --- a plan ------------------------------------------------------------------------------------------------


def test_this_machine_stands_first_and_then_every_row_of_the_table(planned):
    assert [each.name for each in planned.places] == [HERE, *elsewhere.load().shown]
    assert planned.on_this_machine.basis == "measured here"
    assert {each.basis for each in planned.places[1:]} == {"published"}
    assert planned.wish == (8 * 3600, 10, "USD")
    assert {each.largest for each in planned.places} == {1024}  # of 1,079 images
    assert all(each.fits for each in planned.places) and planned.remedies == ()
    assert planned.answer.startswith("Run it here: about ")


def test_all_nets_and_seeds_count(planned):
    assert (planned.nets, planned.seeds) == (5, 3)
    epoch = planned.prediction.seconds_per_epoch
    assert planned.on_this_machine.epoch.likely == pytest.approx(epoch)
    assert planned.on_this_machine.total.likely == pytest.approx(50 * 15 * epoch)


def test_text_and_json_say_the_same(planned):
    text = str(planned)
    assert max(map(len, text.splitlines())) <= 120
    row = r"^RTX 4090 +\d\.\d+ MB of 23 GB .* price unknown .* marginal: price unknown$"
    assert re.search(row, text, re.M)
    for told in ("memory at the peak", "5 nets x 3 seeds x 50 epochs", "not measured", "A100 40 GB"):
        assert told in text
    assert planned.answer in " ".join(text.split())
    found = json.loads(json.dumps(planned.as_dict(), allow_nan=False))
    assert [each["name"] for each in found["places"]] == [each.name for each in planned.places]
    assert found["prediction"]["memory"] == planned.prediction.memory
    assert found["answer"] == planned.answer
    assert found["places"][0]["total"][1] == planned.on_this_machine.total.likely


@pytest.mark.slow
def test_a_plan_for_more_memory_than_exists_runs_nothing_large():
    about = {"batch_size": 8192, "precision": "bfloat16", "gradient_checkpointing": True}
    workload = measure.of_transformer("llama", "tiny", n_samples=8192, **about)
    found = measure.plan(workload, measure=False, largest=False)
    here = found.on_this_machine
    assert here.needs > here.usable > 0
    assert (here.verdict, here.why, here.total) == ("not here", ("memory",), None)
    assert found.remedies[0].name == "micro-batches" and found.remedies[0].fits
    assert "No machine of the table does it" in found.answer
    assert "it fits here with --set micro_batch=" in found.answer and "micro_batch=" in str(found)


def test_what_could_not_be_measured_is_not_divided_by(digits, planned, monkeypatch):
    """Too little memory for the arrays: no bandwidth."""
    known = {"device": "cpu", "bytes_per_second": None, "flops": {"float32": 1e9}}
    monkeypatch.setattr(planning, "predict", lambda *given, **named: planned.prediction)
    monkeypatch.setattr(planning, "figures", lambda *given: known | {"seconds_per_operation": 1e-6})
    found = measure.plan(**digits, largest=False)
    assert found.on_this_machine.total and any("bandwidth" in note for note in found.notes)
    t4 = next(each for each in found.places if each.name == "T4")
    assert t4.total.high == pytest.approx(9 * t4.total.low), "not calibrated"


def test_amounts_have_no_exponents():
    row = planning._row(at("T4", 1, 100, needs=3e-4, wish=Wish()))
    assert row[1] == "300 kB of 10 GB" and row[5] == "100.00 USD"
    units = replace(at("T4", 1), compute_units=Range(50, 104, 200))
    assert planning._row(units)[6] == "104"
    wish = Wish(1, 2e6)
    assert answer([at(HERE, 9, 9, wish=wish)], wish).split(";")[0].endswith("for 2,000,000 USD")


def test_without_times_the_ranges_are_wider(digits, planned):
    found = measure.plan(**digits, measure=False, largest=False)
    here = found.on_this_machine
    assert here.epoch is found.prediction.seconds is here.largest is None
    wide, narrow = (next(each for each in one.places if each.name == "T4").total for one in (found, planned))
    assert wide.high / wide.low > narrow.high / narrow.low


def test_a_batch_that_is_more_than_the_data_holds_them_all(home):
    asked = runs.to_plan("digits_quanv", {"batch_size": 10**6}, timed=False)
    found = measure.plan(**asked, measure=False, largest=False)
    assert found.prediction.training.batch_size == found.prediction.n_samples
    assert "A batch of 1,000,000 is more than the samples: it holds all of them." in found.notes
    assert list(home.iterdir()) == [], "a plan leaves nothing behind"


# --- verdicts ----------------------------------------------------------------------------------------------


def within(likely, factor=2):
    return Range(likely / factor, likely, likely * factor)


@pytest.mark.parametrize(
    ("share", "hours", "verdict", "why"),
    [
        (0.7, 1, "comfortable", ()), (0.701, 1, "marginal", ("memory",)), (0.95, 1, "marginal", ("memory",)),
        (0.951, 1, "not here", ("memory",)), (0.1, 3.9, "comfortable", ()),
        (0.1, 4.1, "marginal", ("deadline",)), (0.1, 8, "marginal", ("deadline",)),
        (0.1, 8.1, "not here", ("deadline",)),
    ],
)  # fmt: skip
def test_memory_and_a_deadline_that_the_range_reaches_decide(share, hours, verdict, why):
    assert judge(share, within(HOUR * hours), None, None, Wish(8 * HOUR)) == (verdict, why)


def test_a_budget_is_compared_with_prices_of_its_own_currency_alone():
    """Dear or cheap in another one is not known; what costs nothing does so in all of them."""
    wish = Wish(budget=10, currency="USD")
    assert judge(0.1, None, within(3), "USD", wish) == ("comfortable", ())
    assert judge(0.1, None, within(30), "USD", wish) == ("not here", ("budget",))
    for currency in ("EUR", None):
        unknown = (f"price in {currency or 'a currency of its own'}",)
        for cost in (3, 30):
            assert judge(0.1, None, within(cost), currency, wish) == ("marginal", unknown)
        assert judge(0.1, None, within(0), currency, wish) == ("comfortable", ())
    assert judge(0.1, None, within(0.01), "USD", Wish(budget=0)) == ("not here", ("budget",))
    assert judge(0.1, None, None, None, Wish(60, 1)) == ("marginal", ("time unknown", "price unknown"))


@settings(derandomize=True, deadline=None)
@given(st.floats(0.01, 2), st.floats(1, 10), st.floats(0.1, 1e7), st.floats(0.1, 1e7))
def test_needing_more_or_taking_longer_never_helps(share, more, seconds, deadline):
    order = ("comfortable", "marginal", "not here")

    def rank(share, seconds):
        return order.index(judge(share, within(seconds), None, None, Wish(deadline))[0])

    assert rank(share, seconds) <= rank(more * share, seconds)
    assert rank(share, seconds) <= rank(share, more * seconds)


# --- where -------------------------------------------------------------------------------------------------


def at(name, hours=None, cost=0.0, needs=1.0, usable=10.0, wish=None, currency="USD"):
    """A machine with its training, range a factor 2 both ways."""
    total = None if hours is None else within(hours * HOUR)
    price = None if cost is None else within(cost)
    verdict = judge(needs / usable, total, price, currency, wish or Wish())
    about = {"verdict": verdict[0], "why": verdict[1], "device": "cuda", "total": total, "cost": price}
    return Place(name, "cuda", int(usable * GB), currency=currency, needs=int(needs * GB), **about)


def test_here_where_it_costs_nothing():
    found = answer([at(HERE, 2), at("Mac 8 GB", 1), at("L4", 0.2, 0.1)], Wish())
    assert found == "Run it here: about 2 h 0 min (1 h 0 min to 4 h 0 min), free."
    assert answer([at(HERE)], Wish()) == "Run it here: its time is not known."


def test_a_deadline_sends_it_to_the_cheapest_that_does_it():
    wish, tight = Wish(8 * HOUR, 10), Wish(3 * HOUR)
    found = [at(HERE, 30, wish=wish), at("T4", 9, 0.5, wish=wish), at("L4", 2, 1.0, wish=wish)]
    assert answer(found, wish) == "Run it on L4: about 2 h 0 min (1 h 0 min to 4 h 0 min), 1.00 USD."
    marginal = answer([at(HERE, 9, wish=tight), at("A100", 2, 1, wish=tight)], tight)
    assert marginal.startswith("Run it on A100") and marginal.endswith("; marginal: deadline.")
    found = [at(HERE, needs=20), at("dear", 1, 5), at("other", 1, 0.01, currency="EUR")]
    assert answer(found, Wish()).startswith("Run it on dear"), "another currency comes last"


def test_where_nothing_does_it_the_nearest_is_named():
    wish = Wish(HOUR, 1)
    found = [at(HERE, 30, wish=wish), at("T4", 9, 0.9, wish=wish), at("H100", 0.4, 4, wish=wish)]
    told = "No machine of the table does it in 1 h 0 min for 1 USD; nearest is "
    assert answer(found, wish).startswith(told)
    found = [at(HERE, needs=200), at("H100", 1, 1, needs=190, usable=79)]
    told = "No machine of the table does it: it needs 190 GB, and H100 has 79 GB."
    assert answer(found, Wish()) == told


# --- remedies ----------------------------------------------------------------------------------------------


def needs(training):
    """1 GB of weights, 0.1 GB of activations a sample or 128 tokens of it, half of that in half precision."""
    trained = 0.01 if getattr(training, "lora_rank", None) else 1.0
    each = 0.1 * (getattr(training, "sequence_length", None) or 128) / 128
    each /= 2 if training.gradient_checkpointing else 1
    each /= 1 if training.precision == "float32" else 2
    return int((2 + 3 * trained + each * (training.micro_batch or training.batch_size)) * GB)


def of():
    return Settings(batch_size=64)


def text(batch_size=64, **others):
    return ModelSettings(**{"batch_size": batch_size, "sequence_length": 512, **others})


def names(found):
    return [each.name for each in found]


def test_remedies_come_in_order_and_each_only_where_it_applies():
    all_, images = Remedies(needs, GB), ["micro-batches", "checkpointing", "precision", "smaller batch"]
    assert names(all_.alone(text())) == list(REMEDIES) and names(all_.alone(of())) == images
    assert names(Remedies(needs, GB, pieces=False).alone(of())) == images[1:]
    done = text(3, gradient_checkpointing=True, precision="bfloat16", sequence_length=20, lora_rank=4)
    assert all_.alone(done) == []
    assert all_.alone(of())[0].slower is None
    slower = Remedies(needs, GB, lambda its: its.batch_size * (1.3 if its.gradient_checkpointing else 1))
    found = {each.name: each.slower for each in slower.alone(of())}
    assert found["checkpointing"] == pytest.approx(1.3) and found["micro-batches"] == 1


def test_the_mildest_dose_that_fits_else_the_strongest():
    first, *_ = fits = Remedies(needs, 7.6 * GB).alone(of())  # 5 GB and 0.1 a sample: 26 fit
    assert (first.settings, first.fits, first.command) == ({"micro_batch": 16}, True, "--set micro_batch=16")
    assert (first.before, first.after) == (int(11.4 * GB), int(6.6 * GB)) and len(fits) > 1
    found = {each.name: each.settings for each in Remedies(needs, 1).alone(text(8))}
    assert found["micro-batches"] == {"micro_batch": 2} and found["smaller batch"] == {"batch_size": 2}
    assert found["shorter sequences"] == {"sequence_length": 128}


def test_one_is_enough_or_as_many_as_it_takes_each_once_or_none():
    one = Remedies(needs, 7.6 * GB).chain(of())
    assert names(one) == ["micro-batches"]
    told = answer([at(HERE, needs=11.4, usable=8), at("T4", 1, 1)], Wish(), one)
    assert told.endswith("; it fits here with --set micro_batch=16 (11.4 GB become 6.6 GB).")
    chain = Remedies(needs, 2.5 * GB).chain(text())
    assert names(chain) == ["micro-batches", "checkpointing", "shorter sequences", "LoRA"]
    assert all(later.before == earlier.after for earlier, later in itertools.pairwise(chain))
    assert chain[-1].fits and not any(each.fits for each in chain[:-1])
    assert Remedies(needs, GB).chain(text()) == []


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def typed(monkeypatch, capfd):
    """`typed("--recipe", ...)` gives (exit status, stdout, stderr) of `qnnkit plan`."""
    command = typing(monkeypatch, capfd)
    return lambda *given: command("plan", *given)


QUICK = ("--recipe", "digits_quanv", "--no-measuring")


def test_the_command_prints_the_page_or_json(typed, planned, monkeypatch):
    monkeypatch.setattr(planning, "LARGEST", 1)
    about = ("--set", "epochs=7", "--samples", 5000, "--deadline", "1s", "--budget", "0")
    status, out, err = typed(*QUICK, *about, "--json")
    found = json.loads(out)
    assert (status, err) == (0, "") and found["wish"] == {"deadline": 1, "budget": 0, "currency": "USD"}
    assert found["prediction"]["training"]["epochs"] == 7 and found["prediction"]["n_samples"] == 5000
    why = {each["name"]: each["why"] for each in found["places"]}
    assert why["T4"] == ["deadline", "budget"]
    monkeypatch.setattr(measure, "plan", lambda **asked: planned)
    assert typed(*QUICK) == (0, f"{planned}\n", "")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "Argument `--recipe` must be named, or --model in its place"),
        (("--recipe", "digits_quanv", "--set", "batch_size=auto"), "`batch_size` must be a number here"),
        (("--model", "llama", "--set", "epocs=2"), "Did you mean 'epochs'?"),
        (("--recipe", "digits_quanv", "--samples", "0"), "`samples` must be above 0"),
        ((*QUICK, "--deadline", "soon"), "Argument `deadline` must be a time, but is 'soon'"),
        ((*QUICK, "--budget", "ten"), "Argument `budget` must be an amount"),
        ((*QUICK, "--prices", "nothing.yaml"), "Cannot read machine table"),
        ((*QUICK, "--measured", "nothing.json"), "must be a machine's file"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(typed, given, told):
    status, out, err = typed(*given)
    assert (status, out) == (2, "")
    assert told in err and err.startswith("qnnkit: ") and err.count("\n") == 1


# --- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28_800), ("90 min", 5400), ("2d 4h", 187_200), ("1.5 hours", 5400), ("30s", 30),
        ("1H30M", 5400), ("1 day, 2 hours", 93_600), (" 10 minutes ", 600),
    ],
)  # fmt: skip
def test_a_time_is_read(text, seconds):
    assert words.parse_duration(text) == seconds


def test_what_is_no_time_and_no_money():
    for text in ("", "8", "h", "0h", "-1h", "8 epochs", "8h later", "1e3h", "nan h", "8hh"):
        with refused("deadline"):
            words.parse_duration(text, "deadline")
    for text in ("", "-1", "ten", "1e3", "nan", "1 0", "$10 EUR"):
        with refused("budget"):
            words.parse_money(text, "USD")
