"""qnnkit.plan.machines: a table that anyone may edit is read whole, or refused in one sentence."""

import datetime

import pytest
import yaml

from qnnkit.plan import machines, words

TODAY = datetime.date(2026, 11, 22)
NAMES = ("Mac 8 GB", "Mac 16 GB", "Mac 24 GB", "T4", "L4", "A100 40 GB", "A100 80 GB", "H100 80 GB")


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Writes a table of one's own and gives its path; the workspace is empty."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "home"))

    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def own(table):
    return machines.load()


# --- qnnkit's own table ------------------------------------------------------------------------------------


def test_it_has_every_machine_that_plans_are_made_for(own):
    assert own.shown == NAMES
    assert all(own.machines[name].memory_gb >= own.machines[name].usable_gb for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_says_where_its_figures_come_from(own, name):
    row = own.machines[name]
    told = [row.source, *(processor.source for processor in row.processors.values())]
    assert all("http" in source or "Computed" in source for source in told)
    assert row.as_of <= TODAY


def test_a_machine_of_ones_own_costs_nothing_and_colabs_follow_from_units(own):
    assert own.price_per_hour("Mac 8 GB") == 0
    assert own.price_per_hour("T4") == own.machines["T4"].compute_units_per_hour * own.compute_unit.price
    assert own.price_per_hour("H100 80 GB") == own.machines["H100 80 GB"].price_per_hour


def test_a_machine_without_any_price_has_none(table):
    path = table("machines: {T4: {compute_units_per_hour: null}}")
    assert machines.load(path).price_per_hour("T4") is None


def test_a_newer_gpu_is_not_slower_where_it_counts(own):
    t4, h100 = (own.machines[name].processors["cuda"] for name in ("T4", "H100 80 GB"))
    assert h100.bandwidth_gb_s > t4.bandwidth_gb_s
    assert all(h100.tflops[name] > tflops for name, tflops in t4.tflops.items())


def test_notes_say_that_nothing_was_measured_and_which_prices_are_old(own):
    told = " ".join(own.notes(TODAY))
    assert "not measured by qnnkit" in told
    assert "Prices as of 2024-04-10 to 2026-11-09" in told
    assert "Prices of T4, L4 and A100 40 GB are older than a year" in told


def test_notes_keep_quiet_of_age_while_prices_are_fresh(table):
    fresh = "as_of: 2026-11-01\nshown: [T4]\nmachines: {T4: {compute_units_per_hour: 1}}"
    told = machines.load(table(fresh)).notes(TODAY)
    assert told[1].startswith("Prices as of 2026-11-01;") and len(told) == 2
    assert "older" in machines.load(table(fresh)).notes(TODAY + datetime.timedelta(days=400))[2]


# --- one's own table ---------------------------------------------------------------------------------------


def test_a_figure_of_ones_own_goes_before_and_the_others_stay(own, table):
    mine = machines.load(table("as_of: 2026-11-20\nmachines: {T4: {compute_units_per_hour: 1.07}}"))
    assert mine.machines["T4"].compute_units_per_hour == 1.07
    assert mine.machines["T4"].as_of == datetime.date(2026, 11, 20)
    assert mine.machines["T4"].processors == own.machines["T4"].processors
    assert mine.machines["L4"] == own.machines["L4"]


def test_a_figure_deep_in_a_row(own, table):
    mine = machines.load(table("machines: {T4: {processors: {cuda: {tflops: {float16: 40}}}}}"))
    assert mine.machines["T4"].processors["cuda"].tflops == {"float32": 8.1, "float16": 40}


NEW = """
as_of: 2026-11-20
shown: [Ours, T4]
machines:
  Ours:
    kind: cuda
    memory_gb: 48
    usable_gb: 47
    price_per_hour: 0.5
    source: the invoice
    processors:
      cuda: {bandwidth_gb_s: 900, tflops: {float32: 90}, overhead_us: 9, source: its data sheet}
"""


def test_a_new_machine(table):
    mine = machines.load(table(NEW))
    assert mine.shown == ("Ours", "T4") and mine.price_per_hour("Ours") == 0.5


def test_the_table_of_the_workspace_is_found(monkeypatch, tmp_path, table):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    table(NEW, "machines.yaml")
    assert "Ours" in machines.load().machines
    table("machines: {T4: {compute_units_per_hour: 9}}", "other.yaml")
    assert "Ours" not in machines.load("other.yaml").machines  # a relative path is meant from the workspace


def without(text, figure):
    """The table NEW without one of its figures."""
    values = yaml.safe_load(text)
    row = values["machines"]["Ours"]
    (row if figure in row else row["processors"]["cuda"]).pop(figure)
    return yaml.safe_dump(values)


@pytest.mark.parametrize(
    "figure", ["kind", "memory_gb", "usable_gb", "source", "processors", "bandwidth_gb_s", "tflops"]
)
def test_a_missing_figure_is_named_with_its_row(table, figure):
    path = table(without(NEW, figure))
    with pytest.raises(ValueError, match=rf"must give `[\w.]*{figure}` of `Ours`, but does not") as caught:
        machines.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shown: [T4, Mine]", "must have a row `Mine`, which `shown` names, but its rows are Mac 8 GB"),
        ("shown: [T5]", "Did you mean 'T4'?"),
        ("shown: []", "`shown` must have at least 1 item"),
        ("machines: {T4: {memory_gb: big}}", "`memory_gb` of `T4` must be a valid number"),
        ("machines: {T4: {memory_gb: -1}}", "`memory_gb` of `T4` must be greater than 0, but is -1"),
        ("machines: {T4: {memory_gb: .inf}}", "`memory_gb` of `T4` must be a finite number"),
        (
            "machines: {T4: {memory_gb: 12}}",
            "must let `T4` use at most its memory_gb, 12, but usable_gb is 15",
        ),
        (
            "machines: {T4: {price_per_hour: -0.1}}",
            "`price_per_hour` of `T4` must be greater than or equal to 0",
        ),
        ("machines: {T4: {kind: gpu}}", "`kind` of `T4` must be 'cuda', 'mac' or 'cpu', but is 'gpu'"),
        ("machines: {T4: {prize: 1}}", "`prize` of `T4` must be one of kind, memory_gb"),
        ("machines: {T4: cheap}", "`the row` of `T4` must be"),
        ("machines: {T4: {processors: {tpu: {}}}}", "of `T4` must be 'cpu', 'mps' or 'cuda'"),
        ("machines: {T4: {processors: {cuda: {tflops: {float8: 1}}}}}", "of `T4` must be 'float32'"),
        ("machines: {T4: {as_of: tomorrow}}", "`as_of` of `T4` must be a valid date"),
        ("machines: [T4]", "`machines` must be a valid dictionary"),
        ("prices: {}", "Argument `key of mine.yaml` must be a known name, but is 'prices'"),
        ("[T4]", "must hold keys and values, but does not. Its keys are as_of"),
        ("", "must hold keys and values"),
        ("machines: {", "must be plain YAML, but is not in line"),
        ("machines: {T4: {}, T4: {}}", "`T4` is given twice"),
        ("machines: {T4: !!python/name:os.system }", "must be plain YAML"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(table, text, told):
    path = table(text)
    with pytest.raises(ValueError) as caught:
        machines.load(path)
    said = str(caught.value)
    assert told in said and "\n" not in said and said.endswith(".")
    assert "Traceback" not in said and "pydantic" not in said


def test_a_table_that_is_not_there(table, tmp_path):
    with pytest.raises(FileNotFoundError, match="Cannot read machine table"):
        machines.load(tmp_path / "nothing.yaml")


def test_float32_is_needed_because_it_stands_for_what_is_not_named(table):
    path = table(NEW.replace("float32: 90", "float16: 90"))
    with pytest.raises(ValueError, match=r"must give `tflops\.float32` of `Ours\.processors\.cuda`"):
        machines.load(path)


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


@pytest.mark.parametrize(
    "text", ["", "8", "h", "0h", "-1h", "8 epochs", "8h later", "1e3h", "nan h", "8hh", "1..5h"]
)
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="Argument `deadline` must be a time"):
        words.parse_duration(text, "deadline")


@pytest.mark.parametrize(("text", "epochs"), [("50 epochs", 50), ("1 epoch", 1), ("7", 7), ("3EPOCHS", 3)])
def test_epochs_are_read(text, epochs):
    assert words.parse_epochs(text) == epochs


@pytest.mark.parametrize("text", ["", "0", "0 epochs", "-3", "1.5", "3 h", "many epochs", "9" * 10])
def test_what_is_no_number_of_epochs(text):
    with pytest.raises(ValueError, match="Argument `for` must be a number of epochs"):
        words.parse_epochs(text)


@pytest.mark.parametrize(
    ("text", "amount"), [("10", 10), ("0", 0), ("$2.50", 2.5), ("10 USD", 10), ("10usd", 10), ("0.05", 0.05)]
)
def test_money_is_read(text, amount):
    assert words.parse_money(text, "USD") == amount


@pytest.mark.parametrize("text", ["", "-1", "ten", "10 EUR", "€10", "1e3", "nan", "1 0"])
def test_what_is_no_money(text):
    with pytest.raises(ValueError, match="Argument `budget` must be an amount in USD"):
        words.parse_money(text, "USD")


def test_times_near_a_change_of_unit_stay_readable():
    told = [words.duration(seconds) for seconds in (0, 1e-5, 89, 91, 5399, 5401, 172_799, 172_801)]
    assert told == ["0 s", "0.000010 s", "89 s", "1.5 min", "90 min", "1.5 h", "48 h", "2.0 d"]
