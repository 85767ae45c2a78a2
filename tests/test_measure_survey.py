"""The survey of a machine: its rows, its file, that what is slow comes out slower. No time is asserted."""

from __future__ import annotations

import copy
import getpass
import json
import pickle
import platform
import time
from pathlib import Path

import pytest
import torch

from qnnkit import data, measure, recipes, report, runs
from qnnkit.device import machine
from qnnkit.measure import backends, clock, comparing, device_figures, parts, placement, survey, survey_net
from qnnkit.measure.workload import Sample, of_recipe
from qnnkit.models import QuanvNet, features
from qnnkit.runs import surveying
from tests import forked
from tests.toys import texts, typing

CPU, PLANTED = torch.device("cpu"), torch.device("cpu:0")  # torch takes the second for a device of its own


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    """A survey of this machine as `qnnkit measure --quick --profile` takes it, its file, and what is told."""

    def apart(code, *arguments, timeout, given):
        question = tmp_path_factory.mktemp("asked") / "question"
        question.write_bytes(given)
        return forked.python(f"import sys; sys.stdin = open({str(question)!r})\n{code}", *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "apart", apart)
        patch.setattr(clock.load, "__defaults__", (0.02,))
        patch.setattr(parts, "STEPS", 1)
        patch.setattr(device_figures, "LONG_ENOUGH", 1e-4)
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(device_figures, "SMALL_ARRAY", 2**22)
        told, settings = [], {"price_per_hour": 0.5}
        options = {"quick": True, "profile": True, "n_samples": 1000, "settings": settings}
        return *surveying.measure_machine(echo=told.append, **options), told


@pytest.fixture
def toy():
    config = recipes.settings("digits_quanv", stride=2, hidden=2, batch_size=16)
    return config, Sample.of(data.load("digits", train_fraction=0.1))


def rows_of(found, what, **settings):
    wanted = {"what": what, **settings}
    return [row for row in found["rows"] if wanted.items() <= row.items()]


# --- the rows ----------------------------------------------------------------------------------------------


def test_a_survey_is_flat_rows(surveyed):
    found, path, _ = surveyed
    assert survey.load(path) == found == json.loads(json.dumps(found))
    assert all({"what", "device", "value", "unit", "spread"} <= row.keys() for row in found["rows"])
    assert not any(isinstance(value, dict | list) for row in found["rows"] for value in row.values())
    for what in ("bandwidth", "product", "launch", "small product", "circuits", "net update", "net memory"):
        assert any(row["value"] and row["value"] > 0 for row in rows_of(found, what)), what
    assert found["price_per_hour"] == 0.5 and found["busy"]["most"] >= 0


def test_the_recipes_own_net_is_measured(surveyed):
    found = surveyed[0]
    [update] = rows_of(found, "net update", device="cpu")
    [rate] = rows_of(found, "net samples", device="cpu")
    [epoch] = rows_of(found, "net epoch", device="cpu")
    [memory] = rows_of(found, "net memory", device="cpu")
    assert rate["value"] == pytest.approx(32 / update["value"]) and update["threads"] == 1
    assert epoch["value"] == pytest.approx(1000 / rate["value"])
    assert memory["value"] > 50e6, "Python and torch alone"
    assert memory["n_weights"] == memory["n_trained"] == 12_682
    net = found["net"]
    assert (net["recipe"], net["batch_size"], net["n_samples"]) == ("digits_quanv", 32, 1000)
    for part in ("quantum forward", "classical backward", "optimizer"):
        assert rows_of(found, f"net {part}")[0]["value"] > 0


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
def test_without_a_gpu_it_is_said(surveyed):
    assert {row["device"] for row in surveyed[0]["rows"]} == {"cpu"}
    [sentence, *_] = surveyed[0]["notes"]
    assert sentence.startswith("Only the CPU computes here (cuda:0: ") and "mps: " in sentence


def test_a_slow_device_comes_out_slower(monkeypatch):
    """A second device beside the CPU, which takes its time whenever it is waited for."""
    monkeypatch.setattr(clock, "synchronize", lambda device: time.sleep(0.004 * (device == PLANTED)))
    monkeypatch.setattr(device_figures, "SMALL_ARRAY", 2**22)
    monkeypatch.setattr(device_figures, "LONG_ENOUGH", 1e-4)
    both = [
        {(row["what"], row.get("size"), row.get("way")): row["value"] for row in found}
        for found in (list(device_figures.rows_of(one, seconds=0.0, quick=True)) for one in (CPU, PLANTED))
    ]
    for what in (("launch", None, None), ("small product", 4, None)):
        assert both[1][what] > both[0][what]
    assert both[1]["transfer of a number", None, "to"] > 1e-6
    assert not any(what.startswith("transfer") for what, *_ in both[0])


def test_on_the_cpu_the_net_has_the_threads_that_training_would_take(toy, monkeypatch):
    config, sample = toy[0].override(threads="auto", micro_batch=8), toy[1]
    laps = {f"cpu on {n} thread{'s' * (n > 1)}, batch 16": measure.Lap(0.3 / n) for n in (1, 2)}
    monkeypatch.setattr(placement, "thread_counts", lambda: [1, 2])
    monkeypatch.setattr(placement, "timed", lambda *given: (laps, None, None))
    question = {"recipe": config.recipe, "config": config.model_dump(mode="json"), "sample": sample}
    question |= {"device": "cpu", "precision": "bfloat16", "seconds": 0.0, "quick": False}
    found = survey_net.measure(pickle.loads(pickle.dumps(question)))
    [update] = [row for row in found if row["what"] == "net update"]
    assert (update["threads"], update["precision"]) == (2, "bfloat16")
    raced = {row["threads"]: row["value"] for row in found if row["what"] == "net update on threads"}
    assert raced == pytest.approx({1: 16 * 0.3, 2: 16 * 0.15})
    assert survey_net.measure({**question, "precision": "float31"}).startswith("AttributeError")


READS = "import pickle, sys; raise KeyError(*pickle.load(sys.stdin.buffer))"


@pytest.mark.parametrize(
    ("code", "timeout", "told"),
    [
        (READS, 60, "Its process ended with exit code 1 and said: KeyError: 'recipe'"),
        ("import time; time.sleep(60)", 0.3, "It took longer than the 0 s that were left."),
        ("import os; os.kill(os.getpid(), 9)", 60, "Its process was ended by SIGKILL, as a system does"),
    ],
)
def test_a_process_that_fails_says_why(monkeypatch, code, timeout, told):
    monkeypatch.setattr(survey_net, "CODE", code)
    assert survey_net._ask({"recipe": 0}, timeout).startswith(told)


def test_the_cpu_is_not_asked_for_a_precision_in_which_it_does_not_train(toy):
    rows = survey_net.net_rows(*toy, 0.0)  # no time: nothing starts
    assert [row["precision"] for row in rows if row["device"] == "cpu"] == ["float32", "bfloat16"]
    assert {row["why"] for row in rows} == {"The time was up."}


def test_a_frozen_part_is_computed_before_as_in_training(toy):
    config, sample = toy
    batch, frozen = measure.take(sample.batch, 3), config.override(trainable=False)
    net = QuanvNet(frozen, backend="batched", seed=0, **sample.sizes)
    assert features.training_batch(net, batch, frozen, 100)[0].is_floating_point() and net.training
    trained = QuanvNet(config, backend="batched", seed=0, **sample.sizes)
    augmented = frozen.override(augmentation="affine")
    for given in ((net, batch, frozen, 10**12), (net, batch, augmented, 100), (trained, batch, config, 100)):
        assert features.training_batch(*given)[0] is batch[0]  # too many, others in every epoch, not frozen


TEXT = {"sequence_length": 16, "vocabulary": 260, "batch_size": 4}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("recipe", "settings", "noun"),
    [
        ("digits_clip", {"n_qubits": 2, "n_layers": 1, "patch_size": 8, "batch_size": 4}, "pairs"),
        ("text_adapter", {**TEXT, "adapter_weights": 3000}, "blocks"),
    ],
)
def test_captions_and_tokens_are_measured_as_images_are(tmp_path, recipe, settings, noun):
    """In the process that has not the data: the sample is enough for a training step."""
    if recipe.startswith("text"):
        settings = {**settings, "data_dir": str(texts(tmp_path))}
    config = recipes.settings(recipe, micro_batch=2, threads=1, **settings)
    splits = runs.Run(tmp_path, config).load_data()
    sample = pickle.loads(pickle.dumps(Sample.of(splits)))
    assert (sample.n_samples, sample.noun) == (len(splits.train), noun)
    question = {"recipe": config.recipe, "config": config.model_dump(mode="json"), "sample": sample}
    question |= {"device": "cpu", "precision": "float32", "seconds": 0.0, "quick": True}
    found = {row["what"]: row for row in survey_net.measure(question)}
    rate = found["net samples"]["value"]
    assert rate == pytest.approx(4 / found["net update"]["value"])
    assert found["net epoch"]["value"] == pytest.approx(len(splits.train) / rate)
    memory = found["net memory"]
    assert (memory["n_trained"] < 0.1 * memory["n_weights"]) == (recipe == "text_adapter")
    tokens = found.get("net tokens", {}).get("value")
    assert tokens == (None if recipe == "digits_clip" else pytest.approx(15 * rate))


def test_noise_stands_for_a_dataset(tmp_path):
    sample = Sample.dummy("32x32x1x28", 50)
    workload = of_recipe(recipes.settings("folder_quanv", stride=4, batch_size=4), sample)
    images, stepper = workload.batch()[0], workload.stepper()
    assert images.shape == (4, 1, 32, 32) and workload.n_samples == 50
    stepper(workload.batch())
    assert stepper.model(images).shape == (4, 28)


def test_files_tell_nets_apart_by_what_an_epoch_does(toy):
    config, sample = toy
    digest = survey_net.digest(config, sample)
    assert digest == survey_net.digest(config.override(epochs=3, learning_rate=0.5, threads=2), sample)
    changed: list = [
        {"batch_size": 32}, {"hidden": 3}, {"optimizer": "sgd"}, {"gradient_checkpointing": True},
        {"augmentation": "affine"}, {"backend": "default.qubit"}, {"micro_batch": 4},
    ]  # fmt: skip
    others = [survey_net.digest(config.override(**each), sample) for each in changed]
    others.append(survey_net.digest(config, Sample(sample.batch, sample.sizes, 101, 101)))
    assert len({digest, *others}) == 1 + len(changed) + 1


def test_a_model_in_a_folder_is_the_same_on_every_machine(tmp_path):
    digests, sample = [], Sample({"labels": torch.zeros(2, 4)}, {"length": 16}, 10, 10)
    for name, content in (("here", "{}"), ("there", "{}"), ("other", '{"hidden_size": 8}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
        config = recipes.settings("text_adapter", pretrained=str(tmp_path / name), data_dir=str(tmp_path))
        digests.append(survey_net.digest(config, sample))
    assert digests[0] == digests[1] != digests[2]


# --- simulators --------------------------------------------------------------------------------------------


def cells(**seconds):
    """Rows of 64 circuits on a GPU: backend -> {qubits: seconds}."""
    return [
        {"what": "circuits", "device": "cuda:0", "backend": backend.replace("_", "."), "qubits": n,
         "batch": 64, "value": taken, "unit": "s", "spread": 1.0}
        for backend, times in seconds.items()
        for n, taken in times.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ({4: 9, 16: 9, 20: 1}, "faster than the batched simulator from 20 qubits on."),
        ({4: 1, 16: 9, 20: 9}, "slower than the batched simulator up to 20 qubits."),
        ({16: 1}, "faster than the batched simulator from 16 qubits on."),
        ({}, None),
    ],
)
def test_from_how_many_qubits_lightning_gpu_wins(gpu, told):
    found = {"rows": cells(batched={4: 5, 16: 5, 20: 5}, lightning_gpu=gpu)}
    said = [each for each in comparing._of_simulators(found) if "lightning.gpu:" in each]
    assert said == ([f"64 circuits on cuda:0, lightning.gpu: {told}"] if told else [])


def test_the_fastest_simulator_in_a_sentence():
    found = {"rows": cells(batched={4: 0.001, 8: 2}, default_qubit={4: 0.0025})}
    told = "1 ms on batched on cuda:0; default.qubit on cuda:0 2.5 times as long."
    assert list(comparing._of_simulators(found)) == [f"64 circuits of 4 qubits: {told}"]


def test_what_would_take_too_long_or_too_much_memory_is_left_out(monkeypatch):
    [smaller] = cells(batched={4: 0.5})
    cell = {**smaller, "qubits": 8, "value": None}
    monkeypatch.setattr(backends.held, "free", lambda device: 4e9)
    assert backends._obstacle(cell, [smaller], 1000) is None
    told = backends._obstacle(cell, [smaller], 60)
    assert told and told.startswith("It would take about 40.0 s, too much of the 60.0 s")
    assert backends._obstacle(cell, [smaller], -1) == "The time was up."
    told = backends._obstacle({**cell, "qubits": 20, "backend": "default.qubit"}, [], 60)
    assert told == "It may need 53.7 GB, and a quarter of the free memory is 1.0 GB."


def test_circuits_that_run_one_by_one_are_scaled_up():
    [many] = backends._cell([("lightning.qubit", CPU)], 2, 1000, [], 1000, share=0.0)
    [few] = backends._cell([("lightning.qubit", CPU)], 2, 1, [], 1000, share=0.0)
    assert many["timed"] == 1 and many["value"] > 100 * few["value"], "one after the other"
    [batched] = backends._cell([("batched", CPU)], 2, 3, [], 1000, share=0.0)
    assert batched["timed"] == 3


def test_a_slow_simulator_comes_out_slower_and_one_that_fails_says_why(monkeypatch):
    right = backends._run

    def run(backend, *given):
        if backend == "lightning.qubit":
            raise RuntimeError("no such thing\nhere")
        call = right(backend, *given)
        return (lambda: (time.sleep(0.3), call())) if backend == "default.qubit" else call

    monkeypatch.setattr(backends, "_run", run)
    three = [(name, CPU) for name in ("batched", "default.qubit", "lightning.qubit")]
    fast, slow, absent = backends._cell(three, 4, 1, [], 1000, 0.1)
    assert slow["value"] > fast["value"] > 0 and slow["value"] >= 0.3
    assert (absent["value"], absent["why"]) == (None, "RuntimeError: no such thing")


# --- the file ----------------------------------------------------------------------------------------------


def test_each_kind_of_machine_has_its_file():
    name = "Intel(R) Xeon(R) CPU @ 2.00GHz, 2 cores, Colab"
    assert survey.default_place({"name": name}).name == "intel-xeon-cpu-2-00ghz-2-cores-colab.json"


def test_nothing_in_the_facts_tells_whose_machine_it_is():
    facts = survey.facts()
    assert not {platform.node(), getpass.getuser()} & {*map(str, facts.values())}
    assert str(Path.home()) not in json.dumps(facts)


def planted(**changes):
    return lambda found: json.dumps(found | changes).encode()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda found: json.dumps(found)[:-30].encode(), "must be a file that `qnnkit measure` wrote"),
        (lambda found: b"\x89PNG\xff", "must be a file that `qnnkit measure` wrote"),
        (lambda found: b"[1, 2]", "must be a file that `qnnkit measure` wrote"),
        (planted(format=1, qnnkit="0.7.0"), "format 1, by qnnkit 0.7.0"),
        (lambda found: b'{"format": 2}', "must be whole, but `measured_at` is wrong (field required)"),
        (lambda found: json.dumps(found).replace('"value": ', '"value": -', 1).encode(), "value` is wrong"),
        (planted(devices=[{"device": "cpu", "name": "x", "memory": "16 GB"}]), "`devices.0.memory` is wrong"),
    ],
)
def test_what_is_no_machines_file_is_refused_in_a_sentence(surveyed, tmp_path, damage, told):
    path = tmp_path / "machine.json"
    path.write_bytes(damage(surveyed[0]))
    with pytest.raises(ValueError) as caught:
        survey.load(path)
    sentence = str(caught.value)
    assert told in sentence and sentence.endswith("qnnkit measure --out FILE.") and "\n" not in sentence


def test_figures_are_those_that_an_estimate_reads(surveyed):
    found = surveyed[0]
    [cpu, *_] = survey.figures(found)
    assert set(cpu) == {"device", "name", "memory", "bytes_per_second", "flops", "seconds_per_operation"}
    assert cpu["bytes_per_second"] == rows_of(found, "bandwidth", device="cpu")[0]["value"]
    less = {**found, "rows": [row for row in found["rows"] if row["what"] != "bandwidth"]}
    assert survey.figures(less)[0]["bytes_per_second"] is None


# --- as it is read -----------------------------------------------------------------------------------------


def test_the_table_has_all_figures_and_all_sentences(surveyed):
    found = copy.deepcopy(surveyed[0])
    found["busy"]["sentence"] = "The machine is busy."
    for number, row in enumerate(found["rows"]):
        row["spread"] = 2.5 if number < 4 else 1.0
    text = comparing.table(found)
    flat = " ".join(text.split())
    assert all(" ".join(sentence.split()) in flat for sentence in comparing.sentences(found))
    assert found["machine"]["name"] in text and "0.5 an hour" in text and "The machine is busy." in text
    assert "4 (bandwidth cpu, product cpu float32 size " in flat and "and others" in flat
    for row in found["rows"]:
        assert row["what"] in text or row["what"] == "circuits"
    assert "digits_quanv, batch 32, 1,000 samples an epoch." in text


def test_from_which_size_an_accelerator_wins():
    rows = [
        {"what": "small product", "device": device, "size": size, "value": value}
        for device, size, value in (("cpu", 4, 5), ("cpu", 64, 5), ("cuda:0", 4, 9), ("cuda:0", 64, 1))
    ]
    [sentence] = comparing._of_devices({"rows": rows})
    assert sentence.endswith("on cuda:0, one after the other: faster than the CPU from 64x64 matrices on.")


def net(what, device, value, precision="float32", **settings):
    return {"what": f"net {what}", "device": device, "precision": precision, "value": value, **settings}


def test_the_report_of_a_run_tells_which_device_was_faster(surveyed, tmp_path):
    run = runs.Run(tmp_path, recipes.settings("digits_clip"))
    assert report.sentences.surveyed(run) == [], "nobody has measured"
    found = copy.deepcopy(surveyed[0])
    found["machine"]["name"] = "Tesla T4"
    found["rows"] = [
        {**row, "unit": "s", "spread": None}
        for row in (
            net("epoch", "cuda:0", 0.5), net("epoch", "cpu", 1.5), net("memory", "cpu", 4e8),
            net("memory", "cuda:0", 1e8), net("memory", "cuda:0", 5e7, "bfloat16"),
            net("update on threads", "cpu", 0.2, threads=1), net("update on threads", "cpu", 0.1, threads=2),
        )
    ]  # fmt: skip
    survey.write(tmp_path / "machine.json", found)
    assert report.sentences.surveyed(run) == [
        "Measured on Tesla T4: An epoch of the net: 500 ms on cuda:0 in float32; cpu in float32 3 times as "
        "long.",
        "Measured on Tesla T4: An update of the net on the CPU: 100 ms on 2 threads in float32; 1 threads in "
        "float32 2 times as long.",
        "Measured on Tesla T4: Memory at the peak in float32: 400 MB on cpu, 100 MB on cuda:0.",
    ]
    (tmp_path / "machine.json").write_text("half")
    assert report.sentences.surveyed(run) == []


def test_a_busy_machine_is_said_first_and_kept(toy, monkeypatch):
    loads, told = iter([1.5, 0.0, 0.2, 0.1]), []
    monkeypatch.setattr(clock, "load", lambda: next(loads))
    monkeypatch.setattr(survey, "rows_of", lambda *given, **options: [])
    monkeypatch.setattr(backends, "circuit_rows", lambda *given, **options: ([], []))
    monkeypatch.setattr(survey_net, "net_rows", lambda *given, **options: [])
    found = survey.take(*toy, echo=told.append)
    assert told[0] == found["busy"]["sentence"] == measure.note(1.5) and "1.5 of its" in told[0]
    assert found["busy"]["most"] == 1.5
    assert "The machine is busy" in comparing.table({**found, "rows": cells(batched={4: 1.0})})


@pytest.mark.slow
def test_the_default_survey(toy):
    """Every section, in a process of its own where that matters; under three minutes on two cores at rest."""
    begin = time.perf_counter()
    found = survey.take(toy[0].override(threads="auto"), toy[1])
    assert {row.get("threads") for row in rows_of(found, "net update on threads")} == set(
        placement.thread_counts()
    )
    if found["busy"]["sentence"] is None:
        assert time.perf_counter() - begin < 180


# --- machines beside each other ----------------------------------------------------------------------------


@pytest.fixture
def machines(surveyed, tmp_path):
    """This machine's file, and a copy of it with other numbers: `machines("b", slower=2)` gives its path."""

    def write(name, slower=1.0, price=None, change=lambda found: None, **net):
        found = copy.deepcopy(surveyed[0])
        found["machine"]["name"], found["price_per_hour"] = name, price
        found["busy"] = {"most": 0.0, "sentence": None}
        found["net"] |= net
        for row in rows_of(found, "net epoch"):
            row["value"] = 0.1 * slower
        change(found)
        path = tmp_path / f"{name}.json"
        survey.write(path, found)
        return path

    return write


def test_machines_side_by_side(machines):
    mac = machines("a Mac", slower=0.5, price=0.36)
    found = comparing.compare([machines("a machine", price=3.6), mac, machines("third", slower=0.51)])
    here = found.frame[found.frame["device"] == "cpu"]
    assert list(here["machine"]) == ["a machine", "a Mac", "third"]
    assert list(here["s/epoch"]) == pytest.approx([0.1, 0.05, 0.051])
    assert list(here["cost/epoch"])[:2] == pytest.approx([0.1 * 3.6 / 3600, 0.05 * 0.36 / 3600])
    assert found.sentences == [
        "a Mac is about as fast per epoch as third (0.05 s on cpu, 0.051 s on cpu).",
        "a Mac is 2.0x faster per epoch than a machine (0.05 s on cpu, 0.1 s on cpu); an epoch costs "
        "0.000005, and 0.0001 there.",
        "Cheapest per epoch: a Mac, 0.000005.",
    ]
    assert "a machine" in str(found)
    assert found.net.startswith("digits_quanv, batch 32, 1,000 samples an epoch")
    assert found.picture().png()[:4] == b"\x89PNG"


def test_what_a_file_lacks_and_nets_that_differ_are_not_compared(machines):
    def less(found):
        found["rows"] = [row for row in found["rows"] if row.get("size") != 64 and row["what"] != "net epoch"]

    found = comparing.compare([machines("a", change=less), machines("b")])
    assert found.frame["64x64 us"].isna().tolist() == [True, False]
    assert found.sentences == ["a has no net measured."] and "NaN" not in str(found)
    found.picture().png()
    found = comparing.compare([machines("a"), machines("b", digest="other", recipe="cnn")])
    [sentence] = found.sentences
    assert sentence.startswith("The nets differ in settings, batch or data (a: digits_quanv; b: cnn)")
    assert found.net == "" and found.frame["s/epoch"].isna().all()


def test_doubts_are_said(machines):
    def change(found):
        found["busy"] = {"most": 1.5, "sentence": "The machine is busy."}
        found["machine"]["versions"]["torch"] = "1.0.0+cu128"

    [*_, busy, version] = comparing.compare([machines("a", change=change), machines("b")]).sentences
    assert busy.startswith("a was busy while it was measured: others used up to 1.5 of its ")
    assert version == "a was measured with torch 1.0.0, not with what is installed here."


def test_machines_of_one_kind_are_told_apart_by_their_files(machines, tmp_path):
    content = machines("same").read_bytes()
    paths = [tmp_path / place / "machine.json" for place in ("a", "b", "c/deep", "d/deep")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    found = comparing.compare(paths).frame
    names = [f"same ({place}/machine)" for place in ("a", "b", "c/deep", "d/deep")]
    assert list(found[found["device"] == "cpu"]["machine"]) == names
    with pytest.raises(ValueError, match="must name two or more"):
        comparing.compare([paths[0], tmp_path / "b" / ".." / "a" / "machine.json"])  # one file, named twice


def test_a_relative_name_is_looked_for_here_and_then_in_the_workspace(machines, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    a = machines("a")
    assert comparing.files("a.json") == comparing.files(["a.json"]) == [a]
    here = tmp_path / "elsewhere" / "a.json"
    here.write_bytes(a.read_bytes())
    assert comparing.files("a.json") == comparing.files(["a.json"]) == [here]
    assert comparing.files([".", tmp_path]) == [here, a], "a folder is all that it holds"
    b = machines("b")
    assert comparing.files(f"{a}, {b}") == comparing.files([a, b]) == [a, b]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold machines' files"):
        comparing.files(str(tmp_path / "empty"))


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capfd):
    """`command("measure", ...)` gives exit status, stdout and stderr."""
    return typing(monkeypatch, capfd)


@pytest.fixture
def asked(monkeypatch, surveyed):
    """Grows with what surveys are asked for, which take no time."""
    found = []

    def taken(config, sample, *, echo=None, **options):
        found.append((config.recipe, config.batch_size, sample.n_samples, sample.sizes["n_classes"], options))
        return copy.deepcopy(surveyed[0])

    monkeypatch.setattr(survey, "take", taken)
    return found


def test_measure_prints_a_table_and_writes_the_file(command, surveyed, asked, tmp_path):
    words = ("--set", "batch_size=8", "--set", "price_per_hour=0.5")
    status, out, err = command("measure", "--out", "mine.json", *words)
    usual = {"seconds": None, "quick": False, "price_per_hour": None}
    assert asked.pop() == ("digits_quanv", 8, 1079, 10, usual | {"price_per_hour": 0.5})
    command("measure", "--seconds", "7", "--quick", "--samples", "50")
    assert asked.pop() == ("digits_quanv", 32, 50, 10, usual | {"seconds": 7, "quick": True})
    command("measure", "--recipe", "folder_quanv", "--dummy", "8x8x3x5")
    assert asked.pop()[2:] == (1000, 5, usual)
    assert (status, err) == (0, "") and out.rstrip().endswith(f"File: {tmp_path / 'mine.json'}")
    assert survey.load(tmp_path / "mine.json") == surveyed[0]
    status, out, _ = command("measure", "--json")
    assert status == 0 and json.loads(out) == surveyed[0]
    assert [file.name for file in (tmp_path / "machines").iterdir()] == [surveyed[1].name]


def test_measure_takes_a_runs_own_settings(asked):
    runs.open_run("run", "digits_quanv", batch_size=8, train_fraction=0.5)
    surveying.measure_machine(run_dir="run")
    assert asked[0][1:3] == (8, 540)


def test_a_profile_is_told_and_its_trace_lies_beside_the_file(surveyed):
    _, path, told = surveyed
    assert "Self CPU %" in told[-1] and path.with_suffix(".trace.json.gz").is_file()


def test_compare_prints_and_draws(command, machines, tmp_path):
    a, b = machines("a"), machines("b", slower=3)
    status, out, err = command("measure", "--compare", a, b)
    assert (status, err) == (0, "") and "a is 3.0x faster per epoch than b" in out
    assert (tmp_path / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert command("measure", "--compare", a, b, "--out", "there.png")[0] == 0
    assert (tmp_path / "there.png").exists()
    for named in ([tmp_path], ["a.json", "b.json"]):  # as --out would write them
        assert command("measure", "--compare", *named) == (0, out, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compare"], "`--compare` must name two or more machines' files, but is []"),
        (["one.json"], "Files are for --compare"),
        (["--seconds", "0"], "`--seconds` must be above 0"),
        (["--samples", "-3"], "`--samples` must be above 0"),
        (["--set", "batch_size=auto"], "`batch_size` must be a number here, but is 'auto'"),
        (["--dummy", "32x32"], "`--dummy` must be height x width x channels x classes, but is '32x32'"),
        (["--dummy", "8x8x1x2", "--recipe", "digits_clip"], "`--dummy` must come with a recipe of labelled"),
    ],
)
def test_a_bad_command_is_refused_in_a_sentence(command, tmp_path, words, told):
    status, out, err = command("measure", *words)
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1, err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_before_minutes_are_spent(command, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "take", lambda *given, **options: pytest.fail("measured in vain"))
    (tmp_path / "file").write_text("mine")
    status, _, err = command("measure", "--out", "file/machine.json")
    assert status == 2 and "a file is in its place" in err


# --- what only a GPU shows ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_is_surveyed(toy):
    found = survey.take(*toy, quick=True)
    for what in ("transfer", "launch", "net update", "net memory"):
        assert rows_of(found, what, device="cuda:0")[0]["value"] > 0
    assert rows_of(found, "product", device="cuda:0", precision="bfloat16")[0]["value"] > 0
    assert any(row["value"] for row in rows_of(found, "circuits", device="cuda:0"))


@pytest.mark.mps
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs MPS")
def test_a_mac_is_surveyed(toy):
    found = survey.take(*toy, quick=True)
    assert {"cpu", "mps"} <= {row["device"] for row in found["rows"]}
