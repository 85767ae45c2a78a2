"""qnnkit.checkpoint: a damaged newest file harms no older one, and loading executes no code."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import struct
import threading
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save as safetensors
from torch import nn

from qnnkit import checkpoint
from qnnkit.checkpoint import Store, file, weights
from tests.same import from_seed, raises, same
from tests.toys import damage, disk_order, room_for

IDENTITY = {"net": "hybrid", "seed": 0}


def net():
    return from_seed(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def state_of(number):
    """A state that holds its number."""
    return {"model": {"weight": torch.full((3,), float(number))}, "progress": {"updates": number}}


def keep(store, *numbers, best=None):
    """Saves these states after the existing ones."""
    store.restore()
    for number in numbers:
        store.save(state_of(number), best=best is True or best == number)
    store.wait()


def written(folder, state, number=1):
    return file.write(folder, number, file.packed(state))


# --- one file ----------------------------------------------------------------------------------------------


def test_everything_is_restored_bit_for_bit(tmp_path):
    model, one, turned = net(), torch.arange(6.0), torch.exp(1j * torch.arange(3, dtype=torch.float64))
    optimizers = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for each in optimizers:
        model(torch.ones(2, 3)).sum().backward()
        each.step()
    state = {
        "model": dict(model.state_dict()),
        "optimizers": [each.state_dict() for each in optimizers],
        "scaler": None,
        "random": checkpoint.random_state(),
        "tuple": (1, 2.5, "text", True, None, float("inf"), 0.1 + 0.2),
        "pairs": {(0, 1): torch.ones(2), ("a", (2, None)): 3, (): {}, 7: 1, "7": 2},
        "empty": [torch.zeros(0, 3), {}, []],
        "halves": torch.arange(5, dtype=torch.bfloat16),
        "turned": {"a": {"b": turned, 0: torch.zeros(2), "0": torch.ones(2)}},
        "turned/a/b": turned.conj().to(torch.complex64),
        "shared": {"all": one, "again": one, "view": one[2:], "across": one.view(2, 3).T},
    }
    loaded = file.read(written(tmp_path, state))
    assert same(loaded, state), "including views and tied weights"
    loaded["turned"]["a"][0][1] = 1e-45
    assert not same(loaded, state), "the comparison notices one bit"


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = disk_order(monkeypatch)
    path = written(tmp_path, state_of(1))
    assert done == [("flush", path.stat().st_ino), ("replace", path.name)]


def test_the_newest_has_the_highest_number_also_with_more_digits(tmp_path):
    for number in (1, 2):
        keep(Store(tmp_path), number, best=True)
        for path in tmp_path.glob("checkpoint-000001-*"):
            path.rename(path.with_name(path.name.replace("000001", "999999")))
    assert len(list(tmp_path.glob("checkpoint-1000000-*"))) == 1
    assert same(Store(tmp_path).restore(), state_of(2))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.float64(1).dtype, nn.Linear(1, 1), {frozenset(): 1}])
def test_values_that_are_neither_tensor_nor_plain_raise_an_error(value):
    with pytest.raises(TypeError, match="model/part is a"):
        file.packed({"model": {"part": value}})


def test_a_flipped_bit_or_a_truncation_anywhere_is_noticed(tmp_path):
    path = written(tmp_path, state_of(1))
    content = path.read_bytes()
    broken = [content[: int(share * len(content))] for share in (0, 0.001, 0.5, 0.999)]
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        broken.append(flipped)
    for each in broken:
        path.write_bytes(each)
        with pytest.raises(ValueError, match="is damaged"):
            file.read(path)


class Payload:
    """Leaves a trace in the current folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trace",)


def zipped():
    file = io.BytesIO()
    torch.save(Payload(), file)
    return file.getvalue()


STATES = [
    {"tensor": "__import__('os').system('touch trace')"}, {"eval": "1"}, {"dict": [["a"]]}, {"dict": 5},
    {"tensor": ["a"]}, {}, {"list": [1], "tuple": [2]}, {"tensor": "../../etc/passwd"},
    {"dict": [[{"list": []}, 1]]},
]  # fmt: skip
HEADERS = [{"format": file.FORMAT, "state": {"dict": [["model", state]]}} for state in STATES]
HEADERS += [{"format": file.FORMAT, "state": state} for state in ([], "model")]
HEADERS += [[], None, {"format": 1}, {"step": 1}]
CRAFTED = [safetensors({"a": torch.ones(1)}, {"qnnkit": json.dumps(header)}) for header in HEADERS]
CRAFTED += [pickle.dumps(Payload()), zipped(), b"\x80\x04" + b"0" * 50]
CRAFTED += [struct.pack("<Q", 2**62) + b"{}"]  # a header that claims a huge size


@pytest.mark.parametrize("content", CRAFTED, ids=range(len(CRAFTED)))
def test_crafted_or_pickled_files_raise_an_error_and_run_no_code(tmp_path, monkeypatch, content):
    """Even if the file name holds the right hash."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"checkpoint-000001-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        file.read(path)
    assert [*tmp_path.iterdir()] == [path]


def adapted(seed=0):
    """A net of two layers with LoRA on one; the seed fixes the base weights."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        base = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
        base[2].weight = base[1].weight  # tied
        return get_peft_model(base, LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))


def test_a_checkpoint_of_an_adapted_model_holds_only_the_adapter(tmp_path):
    """Frozen weights may differ by rounding between machines; another base raises an error."""
    model, again, other = adapted(), adapted(), adapted(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += weight.requires_grad
    state = weights.saved_state(model)
    small = {name for name in model.state_dict() if "lora" in name or "bias" in name}
    assert set(state) == {weights.FROZEN, *small}
    read = file.read(written(tmp_path, {"model": state}))["model"]
    weights.load(again, read)
    inputs = torch.ones(2, 64)
    assert torch.equal(model(inputs), again(inputs)), "the same base"
    with torch.no_grad():
        frozen = again.get_submodule("base_model.model.0.base_layer").weight
        frozen *= 1 + 2**-22  # as sine or logarithm differ between processors
        weights.load(again, read)
        frozen *= 1 + 1e-4
    for refusing in (again, other):
        before = [weight.clone() for weight in refusing.parameters()]
        with pytest.raises(ValueError, match="belongs to another base model"):
            weights.load(refusing, read)
        assert all(map(torch.equal, before, refusing.parameters()))


# --- generators --------------------------------------------------------------------------------------------


def drawn():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()  # noqa: NPY002


def test_every_generator_is_restored_and_neighbouring_seeds_differ(tmp_path):
    values = []
    with checkpoint.own_generators():
        for key in [(0, 0), (0, 1), (1, 0), (1, 1), (0,)]:
            checkpoint.seed_all(*key)
            values += drawn()  # an odd number: one normal draw stays cached
        path = written(tmp_path, {"random": checkpoint.random_state()})
        ahead = drawn()
        checkpoint.set_random_state(file.read(path)["random"])
        assert drawn() == ahead
    assert len(set(values)) == 25


# --- a folder of checkpoints -------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A folder with the states of steps 1 to 5, of which 3 is the best."""
    keep(Store(tmp_path / "store", IDENTITY, keep=3), *range(1, 6), best=3)
    return tmp_path / "store"


def restored(folder, identity=IDENTITY):
    state = Store(folder, identity).restore()
    return None if state is None else state["progress"]["updates"]


def named(folder, step):
    [path] = folder.glob(f"checkpoint-{step:06d}-*.safetensors")
    return path


def best_of(folder):
    model = nn.Module()
    model.register_buffer("weight", torch.zeros(3))
    Store(folder, IDENTITY).load_best(model)
    return model.weight[0].item()


def test_the_last_few_and_the_best_are_kept(saved):
    (saved / ".env").touch()  # a file of the user
    assert {int(path.name[11:17]) for path in saved.glob("checkpoint-*")} == {3, 4, 5}
    keep(Store(saved, IDENTITY, keep=1), 6, 7)
    assert {int(path.name[11:17]) for path in saved.glob("checkpoint-*")} == {3, 7}
    assert best_of(saved) == 3 and (saved / ".env").exists()
    with pytest.raises(ValueError, match="belongs to another training"):
        restored(saved, {"seed": 0})  # a new training there would delete them


def test_an_empty_folder(tmp_path):
    assert restored(tmp_path) is None and restored(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError, match="has no intact checkpoint"):
        best_of(tmp_path)


def test_a_disk_that_fails_for_a_while_costs_no_checkpoint(saved, monkeypatch):
    monkeypatch.setattr(file, "hash_of", raises(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match=r"Cannot read .* Run the same command again"):
        restored(saved)


def harm(folder, how, *steps):
    for step in steps:
        damage(named(folder, step), how)


def newest(folder, **changes):
    """Makes the newest an intact file of another net, or one that no store writes."""
    content = {"identity": IDENTITY, "best": None, "state": state_of(6)}
    written(folder, content | changes, 6)


# Damage to the folder f -> which state is restored, and the warning about it.
DAMAGE = {
    "nothing": (lambda f: None, 5, None),
    "newest cut short": (lambda f: harm(f, "cut", 5), 4, r"5-\w+.\w+` is damaged .* resumes from .*00004"),
    "newest is empty": (lambda f: harm(f, "empty", 5), 4, "000004"),
    "newest missing": (lambda f: harm(f, "delete", 5), 4, None),
    "newest grown": (lambda f: harm(f, "grow", 5), 4, "000004"),
    "newest is a folder": (lambda f: harm(f, "folder", 5), 4, "000004"),
    "newest is a link to itself": (lambda f: harm(f, "loop", 5), 4, "000004"),
    "newest is a copy": (lambda f: named(f, 5).write_bytes(named(f, 3).read_bytes()), 4, "000004"),
    "two newest cut short": (lambda f: harm(f, "cut", 5, 4), 3, "00005-.*00004-.* resumes from .*000003"),
    "best with a flipped bit": (lambda f: harm(f, "flip", 3), 5, "weights of the best epoch are lost"),
    "everything cut short": (lambda f: harm(f, "cut", 5, 4, 3), None, "Training starts from the beginning"),
    "another net's": (lambda f: newest(f, identity={"seed": 0}), 5, "belongs to another training"),
    "a best that is a path": (lambda f: newest(f, best="../../x.safetensors"), 6, "lost"),
    "a best that is a number": (lambda f: newest(f, best=5), 6, "lost"),
    "no state": (lambda f: newest(f, state=None), 5, "000005"),
    "drafts of killed writers": (lambda f: (f / ".checkpoint-000009.123").write_bytes(b"half"), 5, None),
    "clock gone back": (lambda f: os.utime(named(f, 5), (0, 0)), 5, None),
    "a stranger's file": (lambda f: (f / "checkpoint-999999-no.safetensors").write_bytes(b"?"), 5, None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_intact_state_is_restored_and_no_intact_one_is_deleted(saved, damage):
    do, step, message = DAMAGE[damage]
    do(saved)
    before = {path.name: path.read_bytes() for path in saved.iterdir() if path.is_file()}
    with contextlib.nullcontext() if message is None else pytest.warns(UserWarning, match=message) as warned:
        assert restored(saved) == step
    assert message is None or ("best epoch are lost" in str(warned[0].message)) == ("lost" in message)
    assert {path.name: path.read_bytes() for path in saved.iterdir() if path.is_file()} == before
    with warnings.catch_warnings(action="ignore"):
        keep(Store(saved, IDENTITY, keep=2), 7)
        assert step is None or named(saved, step).exists(), "a damaged file replaces no intact one"
        keep(Store(saved, IDENTITY, keep=2), 8, best=8)  # training continues and is saved in turn
        assert restored(saved) == 8


@pytest.mark.parametrize("room", [0, 100, 300])
def test_a_full_disk_is_reported_and_the_previous_state_stays(saved, room):
    before = {path.name for path in saved.iterdir()}
    store = Store(saved, IDENTITY)
    store.restore()
    with room_for(room):
        store.save(state_of(6))
        with pytest.raises(OSError, match="Free some space and run the same command again"):
            store.wait()
    assert restored(saved) == 5 and {path.name for path in saved.iterdir()} == before
    store.save(state_of(7))  # the disk has room again
    store.wait()
    assert restored(saved) == 7


def test_training_continues_while_a_slow_disk_writes(tmp_path, monkeypatch):
    """Saves the state at the moment of the call, even if it changes before it is written."""
    go, write = threading.Event(), file.write
    monkeypatch.setattr(file, "write", lambda *args: go.wait(30) and write(*args))
    store, state = Store(tmp_path, IDENTITY), state_of(1)
    store.save(state)
    assert store.busy and not list(tmp_path.glob("checkpoint-*"))
    state["model"]["weight"].fill_(9)
    state["progress"]["updates"] = 9
    go.set()
    store.wait()
    assert same(Store(tmp_path, IDENTITY).restore(), state_of(1)) and not store.busy


def test_a_concurrent_reader_always_gets_an_intact_state(tmp_path):
    store, seen = Store(tmp_path, IDENTITY, keep=2), []
    keep(store, 0)
    for number in range(1, 31):
        store.save(state_of(number), best=number % 3 == 1)
        seen.append(restored(tmp_path))
    store.wait()
    assert None not in seen and seen == sorted(seen) and all(n in (i, i + 1) for i, n in enumerate(seen))
