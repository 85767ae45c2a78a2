"""The survey of a machine: its form, its file, that what is slow comes out slower. No time is asserted."""

from __future__ import annotations

import copy
import json
import time

import pytest
import torch
from pydantic import TypeAdapter

from qnnkit import measure, survey
from qnnkit.survey import clock, form

CPU, PLANTED = torch.device("cpu"), torch.device("cpu:0")  # torch takes the second for a device of its own


@pytest.fixture(autouse=True)
def workspace(monkeypatch, tmp_path):
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
    assert slow["seconds_per_operation"] > fast["seconds_per_operation"]
    assert slow["flops"]["float32"] < fast["flops"]["float32"]
    assert found["devices"][1]["to_device"]["seconds"]["median"] >= 1e-5
    assert found["sentences"] == [
        "100 small matrix products, one after the other: the CPU is faster than cpu:0 up to 512x512."
    ]


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
