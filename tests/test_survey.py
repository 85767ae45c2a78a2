"""The survey of a machine: its form, its file, that what is slow comes out slower. No time is asserted."""

from __future__ import annotations

import copy
import json
import time

import pytest
import torch
from pydantic import TypeAdapter

from qnnkit import cli, data, measure, placement, recipes, report, runs, survey, train
from qnnkit.models import features
from qnnkit.survey import apart, clock, form, operations, printed, samples, whole, words

CPU, PLANTED = torch.device("cpu"), torch.device("cpu:0")  # torch takes the second for a device of its own


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))


@pytest.fixture
def slow_device(monkeypatch):
    """A second device beside the CPU, which takes its time whenever it is waited for."""

    def synchronize(device):
        if device == PLANTED:
            time.sleep(0.004)

    monkeypatch.setattr(measure, "synchronize", synchronize)
    monkeypatch.setattr(survey.platform.devices, "usable_devices", lambda: [CPU, PLANTED])


def of_this_machine(platform):
    return form.Survey(
        format=1,
        qnnkit="0.1.0",
        machine=survey.facts(),
        measured_at="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        busy={"samples": [0.0], "most": 0.0, "sentence": None},
        price_per_hour=None,
        unstable=[],
        sections={"platform": platform},
    )


@pytest.fixture(scope="module")
def platform():
    return survey.platform.measured(0.2, quick=True)


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    """A survey of this machine as `qnnkit measure --quick --profile` takes it, and its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        return survey.measure_machine(quick=True, with_profile=True, price_per_hour=0.5, n_samples=1000)


# --- the clock ---------------------------------------------------------------------------------------------


def test_a_round_of_short_calls_holds_many():
    calls = []
    times = clock.spread(lambda: calls.append(1), CPU, seconds=0, rounds=2)
    assert times["rounds"] == 2 and len(calls) > 100
    assert 0 < times["least"] <= times["median"] <= times["most"]
    calls.clear()
    assert clock.spread(lambda: calls.append(1), CPU, seconds=0, rounds=2, least=0)["rounds"] == 2
    assert len(calls) == 4, "two to warm up"


def test_a_time_that_varies_is_unstable():
    pauses = iter([0.0, 0.0, 0.001, 0.001, 0.05])
    times = clock.spread(lambda: time.sleep(next(pauses)), CPU, seconds=0, rounds=3, least=0)
    assert clock.is_unstable(times)
    assert not clock.is_unstable(clock.times_of([1.0, 1.1, 1.9]))


# --- the platform ------------------------------------------------------------------------------------------


def test_what_the_machine_reaches_is_positive_and_has_its_form(platform):
    TypeAdapter(form.Platform).validate_python(platform)
    [cpu] = [one for one in platform["devices"] if one["device"] == "cpu"]
    assert cpu["threads"] == torch.get_num_threads() and "to_device" not in cpu
    assert [small["size"] for small in cpu["small_products"]] == list(survey.platform.SIZES)
    assert cpu["matmul"]["float32"]["flops_per_second"] > 0


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
def test_without_a_gpu_it_is_said_and_the_cpu_is_complete(platform):
    assert [one["device"] for one in platform["devices"]] == ["cpu"]
    [sentence] = platform["sentences"]
    assert sentence.startswith("Only the CPU computes here (cuda:0: ") and "mps: " in sentence


def test_a_slow_device_comes_out_slower(slow_device):
    found = survey.platform.measured(0.0, quick=True)
    TypeAdapter(form.Platform).validate_python(found)
    fast, slow = survey.figures(of_this_machine(found))
    assert (fast["device"], slow["device"]) == ("cpu", "cpu:0")
    cpu, planted = found["devices"]  # the least: on a busy machine, all else is anybody's
    assert planted["operation"]["least"] > cpu["operation"]["least"]
    assert planted["small_products"][0]["seconds"]["least"] > cpu["small_products"][0]["seconds"]["least"]
    assert planted["to_device"]["seconds"]["least"] > 1e-6 and "to_device" not in cpu
    [sentence] = found["sentences"]
    assert sentence.startswith("100 small matrix products, one after the other: ") and "cpu:0" in sentence


@pytest.mark.parametrize(
    ("here", "told"),
    [
        ([1] * 8, "cuda:0 is faster than the CPU from 4x4 on."),
        ([9, 9, 9, 9, 9, 1, 1, 1], "cuda:0 is faster than the CPU from 128x128 on only."),
        ([1, 9, 9, 9, 9, 9, 9, 9], "the CPU is faster than cuda:0 up to 512x512."),
    ],
)
def test_from_which_size_an_accelerator_wins(platform, here, told):
    def device(name, times):
        small = [
            {"size": size, "seconds": clock.times_of([t])}
            for size, t in zip(survey.platform.SIZES, times, strict=True)
        ]
        return {**platform["devices"][0], "device": name, "small_products": small}

    [sentence] = survey.platform._who_wins([device("cpu", [5] * 8), device("cuda:0", here)])
    assert sentence.endswith(told)


def test_a_precision_that_a_device_lacks_is_told(monkeypatch):
    right = torch.mm

    def mm(a, b):
        if a.dtype == torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nmore")
        return right(a, b)

    monkeypatch.setattr(torch, "mm", mm)
    [cpu, *_] = survey.platform.measured(0.0, quick=True)["devices"]
    assert cpu["matmul"]["float16"] == {"why": "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'"}
    assert set(survey.figures(of_this_machine({"devices": [cpu]}))[0]["flops"]) == {"float32", "bfloat16"}


# --- the file ----------------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was_written(platform):
    found = of_this_machine(platform)
    path = survey.default_place(found["machine"])
    survey.write(path, found)
    assert survey.load(path) == found and survey.load(str(path)) == found
    assert path.parent.name == "machines" and [path] == list(path.parent.iterdir())
    for figures in survey.figures(survey.load(path)):
        assert {"device", "name", "memory", "bytes_per_second", "flops", "seconds_per_operation"} == set(
            figures
        )


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.00GHz, 2 cores, Colab", "intel-xeon-cpu-2-00ghz-2-cores-colab.json"),
        ("Apple M3 Pro, 12 cores", "apple-m3-pro-12-cores.json"),
    ],
)
def test_each_kind_of_machine_has_its_file(name, slug):
    assert survey.default_place(survey.facts() | {"name": name}).name == slug


def test_nothing_in_the_facts_tells_whose_machine_it_is():
    import getpass
    import platform
    from pathlib import Path

    told = json.dumps(survey.facts())
    assert platform.node() not in survey.facts().values() and str(Path.home()) not in told
    assert set(survey.facts()) == set(form.Machine.__annotations__)
    assert getpass.getuser() not in survey.facts().values()


def planted(change):
    def damage(found):
        change(found)
        return json.dumps(found)

    return damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda found: json.dumps(found)[:-30], "must be a file that `qnnkit measure` wrote"),
        (lambda found: b"\x89PNG\xff", "must be a file that `qnnkit measure` wrote"),
        (lambda found: "[1, 2]", "must be a file that `qnnkit measure` wrote"),
        (lambda found: '{"format": 1}', "must be a file that `qnnkit measure` wrote"),
        (planted(lambda found: found.update(format=2, qnnkit="0.7.0")), "format 2, by qnnkit 0.7.0"),
        (planted(lambda found: found.pop("machine")), "must be whole, but `machine` is wrong"),
        (
            planted(lambda found: found["sections"]["platform"]["devices"][0]["operation"].update(median=0)),
            "`sections.platform.devices.0.operation.median` is wrong (input should be greater than 0)",
        ),
        (
            planted(lambda found: found["sections"]["platform"]["devices"][0].update(memory_bytes="16 GB")),
            "memory_bytes",
        ),
    ],
)  # fmt: skip
def test_what_is_no_machines_file_is_refused_in_a_sentence(platform, tmp_path, damage, told):
    path = tmp_path / "machine.json"
    content = damage(copy.deepcopy(of_this_machine(platform)))
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as caught:
        survey.load(path)
    sentence = str(caught.value)
    assert told in sentence and sentence.endswith("qnnkit measure --out FILE.") and "\n" not in sentence


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a machine's file"):
        survey.load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match="must be a machine's file"):
        survey.load(tmp_path)


# --- circuits ----------------------------------------------------------------------------------------------


def cells(**seconds):
    """Cells of 64 circuits on a GPU: backend -> {qubits: seconds}."""
    return [
        form.Cell(
            backend=backend.replace("_", "."),
            device="cuda:0",
            n_qubits=n_qubits,
            batch=64,
            seconds=clock.times_of([taken]),
            circuits_timed=64,
        )
        for backend, times in seconds.items()
        for n_qubits, taken in times.items()
    ]


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ({4: 9, 16: 9, 20: 1}, "lightning.gpu is faster than the batched simulator from 20 qubits on."),
        ({4: 1, 16: 9, 20: 9}, "the batched simulator is faster than lightning.gpu up to 20 qubits."),
        ({16: 1}, "lightning.gpu is faster than the batched simulator from 16 qubits on."),
        ({}, None),
    ],
)
def test_from_how_many_qubits_lightning_gpu_wins(gpu, told):
    found = list(survey.circuits._lightning_gpu(cells(batched={4: 5, 16: 5, 20: 5}, lightning_gpu=gpu)))
    assert found == ([f"64 circuits on cuda:0: {told}"] if told else [])


def test_the_fastest_simulator_in_a_sentence():
    found = list(survey.circuits._fastest(cells(batched={4: 0.001, 8: 2}, default_qubit={4: 0.0025})))
    told = "batched on cuda:0 takes 1 ms, default.qubit on cuda:0 2.5 times as long."
    assert found == [f"64 circuits of 4 qubits: {told}"], "of 8 qubits there is only one"


def test_what_would_take_too_long_or_too_much_memory_is_left_out():
    [smaller] = cells(batched={4: 0.5})
    cell = form.Cell(backend="batched", device="cuda:0", n_qubits=8, batch=64)
    obstacle = survey.circuits._obstacle
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey.circuits, "_room", lambda device: 4e9)
        assert obstacle(cell, [smaller], clock.Budget(1000), False) is None
        told = obstacle(cell, [smaller], clock.Budget(60), False)
        assert told and told.startswith("It would take about 40.0 s, too much of the 60.0 s")
        assert obstacle(cell, [smaller], clock.Budget(-1), False) == "The time was up."
        told = obstacle({**cell, "n_qubits": 20, "backend": "default.qubit"}, [], clock.Budget(60), False)
        assert told == "It may need 53.7 GB, and a quarter of the free memory is 1.0 GB."


def test_circuits_that_run_one_by_one_are_scaled_up():
    budget = clock.Budget(1000)
    cell = survey.circuits._cell("lightning.qubit", CPU, 2, 1000, [], budget, share=0.0)
    assert cell["circuits_timed"] == 1
    [few] = [survey.circuits._cell("lightning.qubit", CPU, 2, 1, [], budget, share=0.0)]
    assert cell["seconds"]["median"] > 100 * few["seconds"]["median"], "one after the other"
    assert survey.circuits._cell("batched", CPU, 2, 3, [], budget, 0.0)["circuits_timed"] == 3


def test_a_slow_simulator_comes_out_slower(monkeypatch):
    right = survey.circuits._run

    def run(backend, *given):
        call = right(backend, *given)
        return (lambda: (time.sleep(0.1), call())) if backend == "default.qubit" else call

    monkeypatch.setattr(survey.circuits, "_run", run)
    found = survey.circuits.measured(60.0, quick=True)
    TypeAdapter(form.Circuits).validate_python(found)
    measured = [cell for cell in found["cells"] if "seconds" in cell and cell["batch"] == 1]
    least = {cell["backend"]: cell["seconds"]["least"] for cell in measured}
    assert least["default.qubit"] > least["batched"] and least["default.qubit"] >= 0.1
    [sentence] = found["sentences"]
    assert sentence.startswith("64 circuits of 4 qubits: batched on cpu takes ")


# --- in a process of its own -------------------------------------------------------------------------------


def test_threads_are_those_that_were_asked_for():
    found = apart.ask("circuits", {"seconds": 0.0}, threads=1, timeout=300)
    assert set(found) == set(survey.circuits.SMALL), found
    TypeAdapter(dict[str, form.Times]).validate_python(found)


@pytest.mark.parametrize(
    ("what", "timeout", "told"),
    [
        ("net", 60, "Its process ended with status 1 and said: KeyError: 'recipe'"),
        ("circuits", 0.1, "It took longer than the 0 s that were left."),
    ],
)
def test_a_process_that_fails_says_why(what, timeout, told):
    assert apart.ask(what, {"seconds": 0.0}, timeout=timeout) == {"why": told}


def test_a_process_that_is_killed_says_so(monkeypatch):
    monkeypatch.setattr(apart, "CODE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    told = apart.ask("net", {}, timeout=60)["why"]
    assert told == "Its process was ended by SIGKILL, as a system does that runs out of memory."


def test_which_number_of_threads_is_best():
    assert (
        words.threads({1: 1.0, 2: 7.0, 8: 1.5})
        == "1 thread is best; 2 take 7 times, 8 take 1.5 times as long."
    )
    assert words.threads({1: 2.0, 4: 1.0}) == "4 threads are best; 1 takes 2 times as long."


# --- the net -----------------------------------------------------------------------------------------------


@pytest.fixture
def toy():
    splits = data.load("digits", train_fraction=0.1)
    return recipes.settings("digits_quanv", stride=2, hidden=2, batch_size=16), splits


def test_the_recipes_own_net_is_measured(surveyed):
    net = surveyed[0]["sections"]["net"]
    [cpu] = [one for one in net["settings"] if one["device"] == "cpu"]
    parts = [cpu[name]["least"] for name in ("forward", "backward", "optimizer")]
    assert min(parts) > 0 and cpu["threads"] == 1
    assert cpu["samples_per_second"] == pytest.approx(32 / cpu["update"]["median"])
    assert cpu["seconds_per_epoch"] == pytest.approx(1000 / cpu["samples_per_second"])
    assert cpu["peak_bytes"] > 50e6, "Python and torch alone"
    assert net["n_weights"] == 12_682 and (net["batch_size"], net["n_samples"]) == (32, 1000)
    assert "On the CPU the net was timed on 1 thread, as the recipe asks." in net["sentences"]


def test_an_update_is_as_many_passes_as_its_batch_has_pieces(toy, tmp_path, monkeypatch):
    config, splits = toy[0].override(micro_batch=8), toy[1]
    samples.write(samples.of(splits, 16, 100), tmp_path)
    question = {
        "recipe": config.recipe,
        "config": config.model_dump(mode="json"),
        "device": "cpu",
        "precision": "bfloat16",
    }
    question |= {"sample": str(tmp_path), "seconds": 0.0}
    monkeypatch.setattr(placement, "thread_counts", lambda: [1, 2])
    passes, backward = [], train.Stepper.backward
    monkeypatch.setattr(
        train.Stepper, "backward", lambda self, loss: passes.append(self) or backward(self, loss)
    )
    found = survey.net.here({**question, "over_threads": True})
    updates = survey.net.WARMUP + survey.net.LEAST
    assert len(passes) >= 2 * (updates + survey.net.LEAST), "two pieces an update, and of one taken apart"
    assert found["samples_per_second"] == pytest.approx(16 / found["update"]["median"])
    assert [one["threads"] for one in found["over_threads"]] == [1, 2]
    assert survey.net.here({**question, "precision": "float31"})["why"].startswith("AttributeError")


def test_files_tell_nets_apart_by_what_an_epoch_does(toy):
    config, sizes = toy[0], toy[1].sizes
    digest = survey.net._digest(config, sizes, 100)
    assert digest == "644bb076027753f7", "files of earlier versions are compared with those of this one"
    assert digest == survey.net._digest(config.override(epochs=3, learning_rate=0.5, threads=2), sizes, 100)
    for other in (
        config.override(batch_size=32),
        config.override(hidden=3),
        config.override(optimizer="sgd"),
        config.override(gradient_checkpointing=True),
        config.override(augmentation="affine"),
        config.override(label_smoothing=0.3),
        config.override(backend="default.qubit"),
    ):
        assert digest != survey.net._digest(other, sizes, 100)
    assert digest != survey.net._digest(config, sizes, 101)


def test_a_model_in_a_folder_is_the_same_on_every_machine(tmp_path):
    digests = []
    for name, content in (("here", "{}"), ("there", "{}"), ("other", '{"hidden_size": 8}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
        config = recipes.settings("text_adapter", pretrained=str(tmp_path / name))
        digests.append(survey.net._digest(config, {"vocabulary": 100, "length": 16}, 10))
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] != survey.net._digest(config, {"vocabulary": 100, "length": 32}, 10)


def test_the_cpu_is_not_asked_for_a_precision_in_which_it_does_not_train(toy):
    rows = survey.net.measured(*toy, 0.0)["settings"]  # no time: nothing starts
    assert [row["precision"] for row in rows if row["device"] == "cpu"] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("asked", "begin"),
    [
        (2, "On the CPU the net was timed on 2 threads, as the recipe asks."),
        (None, "On the CPU the net was timed on 2 threads, torch's own number."),
        (
            "auto",
            "On the CPU the net was timed on 2 threads, torch's own number; with threads=auto training "
            "measures first how many are best.",
        ),
    ],
)
def test_on_how_many_threads_a_net_was_timed_is_said(asked, begin):
    over = [{"threads": n, "seconds": {"median": 0.1 * n}} for n in (1, 2)]
    rows = [{"device": "cpu", "threads": 2, "over_threads": over}, {"device": "cpu", "threads": 2}]
    told = "An update of the net on the CPU: 1 thread is best; 2 take 2 times as long."
    assert list(survey.net._on_threads(asked, rows)) == [begin, told]
    assert list(survey.net._on_threads(asked, rows[1:])) == [begin], "nothing was compared"
    assert list(survey.net._on_threads(asked, [{"device": "cuda:0"}, {"device": "cpu", "why": ""}])) == []


def test_a_frozen_part_is_computed_before_as_in_training(toy):
    config, splits = toy
    from qnnkit import models

    sizes = {"channels": 1, "image_size": (8, 8), "n_classes": 10, "seed": 0}
    images = splits.train.images[:3]
    frozen = config.override(trainable=False)
    batch = images, splits.train.labels[:3]
    net = models.QuanvNet(frozen, backend="batched", **sizes)
    assert features.given(net, batch, frozen, 100)[0].is_floating_point() and net.training
    assert features.given(net, batch, frozen, 10**12)[0] is images, "too many to keep"
    augmented = frozen.override(augmentation="affine")
    assert features.given(net, batch, augmented, 100)[0] is images, "others in every epoch"
    trained = models.QuanvNet(config, backend="batched", **sizes)
    assert features.given(trained, batch, config, 100)[0] is images


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of text, in files enough for three splits."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"{number}. " + "the cat sat on the mat and a dog ran. " * 8)
    return folder


TEXT = {"sequence_length": 16, "vocabulary": 260, "batch_size": 4}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("digits_clip", {"n_qubits": 2, "n_layers": 1, "patch_size": 8, "batch_size": 4}),
        ("text_llama", TEXT),
        ("text_adapter", {**TEXT, "adapter_weights": 3000}),
    ],
)
def test_captions_and_tokens_are_measured_as_images_are(texts, tmp_path, recipe, settings):
    """In the process that has not the data: what the files tell is enough for a training step."""
    if recipe.startswith("text"):
        settings = {**settings, "data_dir": str(texts)}
    config = recipes.settings(recipe, micro_batch=2, **settings)
    splits = runs.Run(tmp_path, config).load_data()
    sample = samples.of(splits, 4)
    samples.write(sample, tmp_path)
    kept = samples.read(tmp_path)
    assert (len(kept), kept.n_samples, kept.n_all) == (4, len(splits.train), sample.n_all)
    assert all(torch.equal(kept.batch[name], tensor) for name, tensor in sample.batch.items())
    question = {
        "recipe": config.recipe,
        "config": config.model_dump(mode="json"),
        "device": "cpu",
        "precision": "float32",
    }
    found = survey.net.here({**question, "sample": str(tmp_path), "seconds": 0.0, "over_threads": False})
    assert found["samples_per_second"] == pytest.approx(4 / found["update"]["median"])
    assert found["seconds_per_epoch"] == pytest.approx(len(splits.train) / found["samples_per_second"])
    parts = [found[name]["least"] for name in ("forward", "backward", "optimizer")]
    assert min(parts) > 0 and found["peak_bytes"] > 50e6
    assert (found["n_trained"] < 0.1 * found["n_weights"]) == (recipe == "text_adapter")
    tokens = found.get("tokens_per_second")
    expected = None if recipe == "digits_clip" else pytest.approx(15 * found["samples_per_second"])
    assert tokens == expected
    kind = data.kind(config.dataset)
    row = {"device": "cpu", "precision": "float32", **found}
    digest = survey.net._digest(config, splits.sizes, kept.n_samples)
    net = form.Net(
        recipe=recipe, kind=kind, digest=digest, n_weights=row.pop("n_weights"),
        n_trained=row.pop("n_trained"), batch_size=4, micro_batch=2, n_samples=kept.n_samples, data_bytes=1,
        settings=[row], sentences=[],
    )  # fmt: skip
    TypeAdapter(form.Net).validate_python(net)
    text = "\n".join(printed._net(net))
    noun = "pairs" if recipe == "digits_clip" else "blocks"
    assert f"{kept.n_samples:,} {noun} an epoch" in " ".join(text.split()) and f"{noun}/s" in text
    assert ("tokens/s" in text) == recipe.startswith("text")
    assert ("of them trained" in text) == (recipe == "text_adapter")


def test_the_report_of_a_run_tells_which_device_was_faster(surveyed, tmp_path):
    run = runs.Run(tmp_path, recipes.settings("digits_clip"))
    assert report.run._surveyed(run) == [], "nobody has measured"
    found = copy.deepcopy(surveyed[0])
    told = "An epoch takes 0.5 s on cuda:0 in float32; cpu in float32 3 times as long."
    found["sections"]["net"]["sentences"] = [told]
    found["machine"]["name"] = "Tesla T4"
    survey.write(tmp_path / "machine.json", found)
    assert report.run._surveyed(run) == [f"Measured on Tesla T4: {told}"]
    (tmp_path / "machine.json").write_text("half")
    assert report.run._surveyed(run) == []


def test_which_device_takes_how_much_memory_is_said():
    rows = [
        {"device": name, "precision": precision, "peak_bytes": n}
        for precision, n in (("float32", 4 * 10**8), ("bfloat16", 10**8))
        for name in ("cpu", "cuda:0")
    ]
    assert list(survey.net._memory(rows)) == [
        "Memory at the peak in float32: 400 MB on cpu, 400 MB on cuda:0."
    ]
    assert list(survey.net._memory(rows[:1])) == []


# --- the whole ---------------------------------------------------------------------------------------------


def test_a_whole_survey_has_its_form_and_comes_back(surveyed):
    found, path = surveyed
    assert survey.load(path) == found
    assert set(found["sections"]) == {"platform", "circuits", "net", "profile"}
    assert len(found["busy"]["samples"]) == 4 and found["busy"]["most"] == max(found["busy"]["samples"])
    assert found["price_per_hour"] == 0.5
    [cpu] = [one for one in found["sections"]["net"]["settings"] if one["device"] == "cpu"]
    assert cpu["update"]["median"] > 0 and cpu["peak_bytes"] > 0
    assert any("seconds" in cell for cell in found["sections"]["circuits"]["cells"])


def test_the_table_has_a_hundred_columns_at_most_and_all_sentences(surveyed):
    found = copy.deepcopy(surveyed[0])
    found["busy"]["sentence"] = "The machine is busy."
    found["unstable"] = [
        f"net settings cpu {name} update" for name in ("float32", "bfloat16", "float16", "x")
    ]
    text = survey.table(found)
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    for section in ("platform", "circuits", "net"):
        assert all(sentence in flat for sentence in found["sections"][section]["sentences"])
    assert (
        "busy The machine is busy. What it reaches" in flat
        and "4 of the times (net settings cpu float32 update, " in flat
    )
    assert found["machine"]["name"] in text and "and others" in flat


def test_the_trace_and_the_costliest_operations(surveyed):
    import gzip

    found, path = surveyed
    profile = found["sections"]["profile"]
    trace = path.parent / profile["trace"]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert 3 < len(profile["operations"]) <= 10
    assert all(one["name"] in names for one in profile["operations"])
    shares = [one["share"] for one in profile["operations"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1
    assert {"matrix products", "circuits, as one fused program"} <= {
        one["words"] for one in profile["operations"]
    }
    assert [file for file in path.parent.iterdir() if file.name.startswith(".")] == []


def test_an_operation_in_words():
    one = survey.Operation("aten::addmm", operations.in_words("aten::addmm"), 0.234, 180)
    assert str(one) == "matrix products (aten::addmm): 23 % of the time, 180 calls an update"
    assert operations.in_words("aten::unheard_of") == "unheard_of"
    known = [name for names in operations.WORDS.values() for name in names]
    assert len(known) == len(set(known)), "an operation has one name"


def test_a_busy_machine_is_said_first_and_kept(toy, monkeypatch):
    loads, told = iter([1.5, 0.0, 0.2, 0.1]), []
    monkeypatch.setattr(whole.measure, "load", lambda: next(loads))
    for section in (survey.platform, survey.circuits, survey.net):
        monkeypatch.setattr(section, "measured", lambda *given, **options: {})
    found = survey.take(*toy, echo=told.append)
    assert told[0] == found["busy"]["sentence"] == measure.note(1.5) and "1.5 of its" in told[0]
    assert found["busy"]["samples"] == [1.5, 0.0, 0.2, 0.1]


def test_times_that_vary_are_named():
    wild, calm = (
        {"least": 1, "median": 1, "most": 3, "rounds": 3},
        {"least": 1, "median": 1, "most": 2, "rounds": 3},
    )
    sections = {
        "platform": {"devices": [{"device": "cpu", "small_products": [{"size": 4, "seconds": wild}]}]},
        "net": {"settings": [{"device": "cpu", "precision": "float32", "update": wild, "forward": calm}]},
        "circuits": {"sentences": ["a"], "cells": [{"backend": "batched", "why": "The time was up."}]},
    }
    assert list(whole._unstable(sections, "")) == [
        "platform devices cpu small products 4",
        "net settings cpu float32 update",
    ]


@pytest.mark.slow
def test_the_default_survey(toy):
    """Every section, in a process of its own where that matters; under three minutes on two cores at rest."""
    found = survey.take(*toy)
    TypeAdapter(form.Survey).validate_python(found)
    threads = {row["threads"] for row in found["sections"]["circuits"]["threads"]}
    assert threads == set(placement.thread_counts())
    assert [one["precision"] for one in found["sections"]["net"]["settings"]][:1] == ["float32"]


# --- machines beside each other ----------------------------------------------------------------------------


@pytest.fixture
def machines(surveyed, tmp_path):
    """This machine's file, and a copy of it with other numbers: `machines("b", slower=2)` gives its path."""

    def write(name, slower=1.0, price=None, **changes):
        found = copy.deepcopy(surveyed[0])
        found["machine"]["name"], found["price_per_hour"] = name, price
        found["busy"] |= {"most": 0.0, "sentence": None}
        for one in found["sections"]["net"]["settings"]:
            one["seconds_per_epoch"] = 0.1 * slower
        found["sections"]["net"] |= changes
        path = tmp_path / f"{name}.json"
        survey.write(path, found)
        return path

    return write


def test_machines_side_by_side(machines):
    paths = [
        machines("a machine", price=2.0),
        machines("a Mac", slower=0.5, price=0.0),
        machines("third", slower=0.51),
    ]
    found = survey.compare(paths)
    here = [row for row in found.rows if row.device == "cpu"]
    assert [row.machine for row in here] == ["a machine", "a Mac", "third"]
    assert [row.seconds_per_epoch for row in here] == pytest.approx([0.1, 0.05, 0.051])
    assert [row.cost_per_epoch for row in here] == [pytest.approx(0.1 * 2 / 3600), 0.0, None]
    assert all(row.spread and row.spread >= 1 and row.peak_bytes for row in here)
    assert found.sentences == [
        "a Mac is about as fast per epoch as third (0.05 s on cpu, 0.051 s on cpu).",
        "a Mac is 2.0x faster per epoch than a machine (0.05 s on cpu, 0.1 s on cpu), and free.",
        "Cheapest per epoch: a Mac, free.",
    ]
    text = survey.comparison_table(found)
    assert max(map(len, text.splitlines())) <= 100 and "free" in text
    assert found.net and found.net.startswith("digits_quanv, batch 32, 1,000 images an epoch")


def test_what_being_faster_costs(machines):
    [sentence, cheapest] = survey.compare(
        [machines("a", price=3.6), machines("b", slower=2, price=0.36)]
    ).sentences
    assert sentence.endswith("(0.1 s on cpu, 0.2 s on cpu); an epoch costs 0.0001, and 2e-05 there.")
    assert cheapest == "Cheapest per epoch: b, 2e-05."


def test_nets_that_differ_are_not_compared(machines):
    found = survey.compare([machines("a"), machines("b", digest="other", recipe="cnn")])
    [sentence] = found.sentences
    assert sentence.startswith("The nets differ in settings, batch or data (a: digits_quanv; b: cnn)")
    assert found.net is None and all(row.seconds_per_epoch is None for row in found.rows)
    survey.picture(found).png()


def test_doubts_are_said(machines):
    path = machines("a")
    found = survey.load(path)
    found["busy"] |= {"most": 1.5, "sentence": "The machine is busy."}
    found["machine"]["versions"]["torch"] = "1.0.0+cu128"
    survey.write(path, found)
    [*_, busy, version] = survey.compare([path, machines("b")]).sentences
    assert busy.startswith("a was busy while it was measured: other programs used up to 1.5 of its ")
    assert version == "a was measured with torch 1.0.0, not with what is installed here."


def test_two_machines_of_one_kind_are_told_apart_by_their_files(machines, tmp_path):
    path = machines("same")
    other = tmp_path / "other.json"
    other.write_bytes(path.read_bytes())
    assert {row.machine for row in survey.compare([path, other]).rows} == {"same (same)", "same (other)"}


def test_files_of_one_name_are_told_apart_by_their_folders(machines, tmp_path):
    content = machines("same").read_bytes()
    paths = [tmp_path / place / "machine.json" for place in ("a", "b", "c/deep", "d/deep")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    found = survey.compare(paths)
    assert [row.machine for row in found.rows if row.device == "cpu"] == [
        "same (a/machine)",
        "same (b/machine)",
        "same (c/deep/machine)",
        "same (d/deep/machine)",
    ]
    with pytest.raises(ValueError, match="must name two or more"):
        survey.compare([paths[0], tmp_path / "b" / ".." / "a" / "machine.json"])  # one file, named twice


def test_a_long_name_keeps_what_tells_it_from_others(machines, tmp_path):
    content = machines("A processor of a very long name").read_bytes()
    for name in "ab":
        (tmp_path / f"{name}.json").write_bytes(content)
    text = survey.comparison_table(survey.compare([tmp_path / "a.json", tmp_path / "b.json"]))
    [a, b] = [line for line in text.splitlines() if " cpu " in line and line.startswith("  A proc")]
    assert "name (a)  cpu" in a and "name (b)  cpu" in b


def test_a_relative_name_is_looked_for_here_and_then_in_the_workspace(machines, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    a = machines("a")
    assert survey.files("a.json") == survey.files(["a.json"]) == [a]
    here = tmp_path / "elsewhere" / "a.json"
    here.write_bytes(a.read_bytes())
    assert survey.files("a.json") == survey.files(["a.json"]) == [here]
    assert survey.files([".", tmp_path]) == [here, a], "a folder is all that it holds"


def test_files_are_named_by_a_folder_or_one_by_one(machines, tmp_path):
    a, b = machines("a"), machines("b")
    assert survey.files(str(tmp_path)) == [a, b] and survey.files(f"{a}, {b}") == survey.files([a, b]) == [
        a,
        b,
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold machines' files"):
        survey.files(str(tmp_path / "empty"))


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capfd):
    """`command("measure", ...)` gives exit status, stdout and stderr."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["qnnkit", *map(str, words)])
        monkeypatch.setattr(cli.device, "launch_environment", dict)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, *capfd.readouterr()

    return run


def test_measure_prints_a_table_and_writes_the_file(command, surveyed, monkeypatch, tmp_path):
    asked = []

    def taken(config, splits, *, echo, **options):
        asked.append((config.recipe, config.batch_size, options))
        return copy.deepcopy(surveyed[0])

    monkeypatch.setattr(survey.command, "take", taken)
    status, out, err = command("measure", "--out", "mine.json", "--set", "batch_size=8", "--price", "0.5")
    usual = {"seconds": None, "quick": False, "n_samples": None, "price_per_hour": None}
    assert asked.pop() == ("digits_quanv", 8, usual | {"price_per_hour": 0.5})
    command("measure", "--recipe", "digits_quanv", "--seconds", "7", "--quick", "--samples", "50")
    assert asked.pop() == ("digits_quanv", 32, usual | {"seconds": 7, "quick": True, "n_samples": 50})
    assert (status, err) == (0, "") and out.rstrip().endswith(f"File: {tmp_path / 'mine.json'}")
    assert survey.load(tmp_path / "mine.json") == surveyed[0]
    status, out, _ = command("measure", "--json")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(surveyed[0]))
    assert [file.name for file in (tmp_path / "machines").iterdir()] == [surveyed[1].name]


def test_measure_takes_a_runs_own_settings(surveyed, monkeypatch, tmp_path):
    runs.open_run("run", "digits_quanv", batch_size=8, train_fraction=0.5)
    seen = []

    def taken(config, splits, **options):
        seen.append((config.batch_size, len(splits.train)))
        return copy.deepcopy(surveyed[0])

    monkeypatch.setattr(survey.command, "take", taken)
    survey.measure_machine(run_dir="run", with_profile=True)
    assert seen == [(8, 540)]
    assert (tmp_path / "run" / "trace.json.gz").exists() and "trace.json.gz" not in {
        file.name for file in (tmp_path / "machines").iterdir()
    }


def test_compare_prints_and_draws(command, machines, tmp_path):
    a, b = machines("a"), machines("b", slower=3)
    status, out, err = command("measure", "--compare", a, b)
    assert (status, err) == (0, "") and "a is 3.0x faster per epoch than b" in out
    assert (tmp_path / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert (
        command("measure", "--compare", a, b, "--out", "there.png")[0] == 0
        and (tmp_path / "there.png").exists()
    )
    status, of_folder, err = command("measure", "--compare", tmp_path)
    assert (status, err, of_folder) == (0, "", out)
    status, of_names, err = command("measure", "--compare", "a.json", "b.json")  # as --out would write them
    assert (status, err, of_names) == (0, "", out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compare"], "`--compare` must name two or more machines' files, but is []"),
        (["--compare", "one.json"], "must name two or more machines' files"),
        (["--compare", "none.json", "neither.json"], "must be a machine's file, but is 'none.json'"),
        (["one.json"], "Files are for --compare"),
        (["--seconds", "0"], "`--seconds` must be above 0"),
        (["--price", "-1"], "`--price` must be 0 or more, but is -1.0"),
        (["--samples", "-3"], "`--samples` must be above 0"),
        (["--recipe", "digit_quanv"], "Did you mean 'digits_quanv'?"),
        (["--recipe", "folder_quanv"], "`data_dir` must"),
        (["--recipe", "captions_clip"], "`data_dir` must"),
        (["--recipe", "text_adapter"], "`data_dir` must"),
        (["--recipe", "music_llama", "--set", "data_dir=none"], "`data_dir` must be an existing folder"),
        (["--recipe", "digits_clip", "--set", "dataset=digits"], "`dataset` must hold captions"),
        (["--run-dir", "none"], "must hold a run"),
        (["--set", "epocs=2"], "Did you mean 'epochs'?"),
    ],
)
def test_a_bad_command_is_refused_in_a_sentence(command, tmp_path, words, told):
    status, out, err = command("measure", *words)
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1, err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_before_minutes_are_spent(command, tmp_path, monkeypatch):
    monkeypatch.setattr(survey.command, "take", lambda *given, **options: pytest.fail("measured in vain"))
    (tmp_path / "file").write_text("mine")
    status, _, err = command("measure", "--out", "file/machine.json")
    assert status == 2 and "a file is in its place" in err


# --- what only a GPU shows ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_is_surveyed(toy):
    found = survey.take(*toy, quick=True)
    TypeAdapter(form.Survey).validate_python(found)
    sections = found["sections"]
    [gpu] = [one for one in sections["platform"]["devices"] if one["device"] == "cuda:0"]
    assert gpu["to_device"]["bytes_per_second"] > 0 and gpu["matmul"]["bfloat16"]["flops_per_second"] > 0
    assert [one["device"] for one in sections["net"]["settings"] if "update" in one] == ["cpu", "cuda:0"]
    assert any(cell["device"] == "cuda:0" and "seconds" in cell for cell in sections["circuits"]["cells"])


@pytest.mark.mps
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs MPS")
def test_a_mac_is_surveyed(toy):
    found = survey.take(*toy, quick=True)
    TypeAdapter(form.Survey).validate_python(found)
    assert {"cpu", "mps"} <= {one["device"] for one in found["sections"]["platform"]["devices"]}
