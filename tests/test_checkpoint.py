"""qnnkit.checkpoint: what is written comes back bit for bit; damaged or foreign files are refused."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from torch import nn

from qnnkit.checkpoint import keep_as, load_checkpoint, save_checkpoint

PROGRESS = {"epoch": 3, "best_score": [0.1, -1 / 3], "seconds": [0.25], "scaler": None}
OPTIMIZERS = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
    "amsgrad": lambda weights: torch.optim.Adam(weights, lr=0.1, amsgrad=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.5),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
}


@pytest.fixture(autouse=True)
def own_random_state():
    """Loading with an optimizer sets torch's generator, as it must; the test gives it back."""
    with torch.random.fork_rng(devices=[]):
        yield


def net(n_classes=2, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, n_classes)).to(dtype)


def step(model, optimizer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    model(torch.randn(5, 3, generator=generator, dtype=dtype)).square().sum().backward()
    optimizer.step()


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def same_state(one, other):
    """Whether two (nested) states agree in every bit."""
    if isinstance(one, torch.Tensor):
        return same_bits(one.reshape(-1), other.reshape(-1)) and one.shape == other.shape
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


@pytest.fixture
def saved(tmp_path):
    """A checkpoint after one Adam step, with the model it is of."""
    model = net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    step(model, optimizer)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, model, optimizer, PROGRESS)
    return path, model


# --- whole -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_everything_comes_back_bit_for_bit(tmp_path, name, dtype):
    model = net(dtype=dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer)
    path = tmp_path / "last.safetensors"
    torch.manual_seed(123)
    save_checkpoint(path, model, optimizer, PROGRESS)
    drawn = torch.rand(4)

    other = net(seed=1, dtype=dtype)
    again = OPTIMIZERS[name](other.parameters())
    assert not same_state(dict(model.state_dict()), dict(other.state_dict()))
    assert load_checkpoint(path, other, again) == PROGRESS
    assert same_state(dict(model.state_dict()), dict(other.state_dict()))
    assert same_state(optimizer.state_dict()["state"], again.state_dict()["state"])
    assert torch.equal(torch.rand(4), drawn)  # the generator went on from where it was
    step(model, optimizer, seed=2)
    step(other, again, seed=2)
    assert same_state(dict(model.state_dict()), dict(other.state_dict()))


def test_without_an_optimizer_only_the_weights_are_restored(saved):
    path, model = saved
    other = net(seed=1)
    before = torch.get_rng_state()
    assert load_checkpoint(path, other) == PROGRESS
    assert same_state(dict(model.state_dict()), dict(other.state_dict()))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_optimizer_that_has_not_stepped(tmp_path):
    model = net()
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, model, OPTIMIZERS["adam"](model.parameters()), PROGRESS)
    assert load_checkpoint(path, net(seed=1), OPTIMIZERS["adam"](net().parameters())) == PROGRESS


def test_tied_weights(tmp_path):
    def tied(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    model, other = tied(0), tied(1)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    step(model, optimizer)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, model, optimizer, PROGRESS)
    load_checkpoint(path, other, OPTIMIZERS["sgd"](other.parameters()))
    assert same_state(dict(model.state_dict()), dict(other.state_dict()))
    assert other[1].weight is other[0].weight


def test_weights_that_are_views_of_one_tensor(tmp_path):
    block = torch.arange(12.0).reshape(3, 4)
    model = nn.Module()
    model.left, model.right = nn.Parameter(block[:, :2]), nn.Parameter(block.T[2:])
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, model, OPTIMIZERS["sgd"](model.parameters()), PROGRESS)
    other = nn.Module()
    other.left, other.right = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(2, 3))
    load_checkpoint(path, other)
    assert torch.equal(other.left, block[:, :2]) and torch.equal(other.right, block.T[2:])


# --- damaged -----------------------------------------------------------------------------------------------


def refused(path, match="is damaged"):
    """Asserts that loading `path` raises one sentence and changes neither the model nor the file."""
    content = path.read_bytes()
    model = net(seed=1)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(ValueError, match=match) as caught:
        load_checkpoint(path, model, optimizer)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert same_state(dict(model.state_dict()), weights)
    assert optimizer.state_dict()["state"] == {}
    assert torch.equal(torch.get_rng_state(), generator)
    assert path.read_bytes() == content


@pytest.mark.parametrize("share", [0, 0.0005, 0.1, 0.3, 0.6, 0.9999])
def test_a_file_cut_short(saved, share):
    path, _ = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


def test_a_file_that_goes_on_too_long(saved):
    path, _ = saved
    path.write_bytes(path.read_bytes() + b"x")
    refused(path)


def test_a_flipped_bit_anywhere_is_noticed(saved):
    path, _ = saved
    content = path.read_bytes()
    own_name = content.index(b'"crc32"')  # a flip in this key alone leaves all that counts whole
    missed = []
    for place in range(0, len(content), 7):
        if own_name <= place < own_name + len(b'"crc32"'):
            continue
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            load_checkpoint(path, net(), OPTIMIZERS["adam"](net().parameters()))
            missed.append(place)
        except ValueError:
            pass
    assert len(content) // 7 > 500 and missed == []


def test_safetensors_of_someone_else(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "best.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    refused(path)


class Payload:
    """A pickle of this makes whoever unpickles it write a file."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return exec, (f"open({str(self.proof)!r}, 'w').close()",)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    path, proof = tmp_path / "best.safetensors", tmp_path / "it ran"
    torch.save({"model": Payload(proof)}, path)
    refused(path)
    assert not proof.exists()
    torch.load(path.rename(tmp_path / "best.pt"), weights_only=False)  # the payload is a real one
    assert proof.exists()


def test_code_in_the_header_stays_text(tmp_path):
    """What is not a tensor is read as JSON: no name in it is looked up, no expression evaluated."""
    path, proof = tmp_path / "last.safetensors", tmp_path / "it ran"
    model = net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    progress = PROGRESS | {"epoch": f"__import__('pathlib').Path({str(proof)!r}).touch()"}
    save_checkpoint(path, model, optimizer, progress)
    assert load_checkpoint(path, model, optimizer) == progress
    assert not proof.exists()


@pytest.mark.parametrize("n_classes", [1, 3])
def test_another_model_is_refused_before_anything_is_copied(saved, n_classes):
    path, _ = saved
    model = net(n_classes, seed=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"belongs to another model: `2\.weight` has shape \(2, 4\) there"):
        load_checkpoint(path, model)
    assert same_state(dict(model.state_dict()), weights)


def test_a_model_with_other_names_is_refused(saved):
    path, _ = saved
    with pytest.raises(ValueError, match="belongs to another model"):
        load_checkpoint(path, nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ValueError, match="None there"):
        load_checkpoint(path, nn.Sequential(*net(), nn.Linear(2, 2)))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.safetensors", net())


def test_the_header_is_plain_json(saved):
    path, _ = saved
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["qnnkit"])
        assert {name.split(".")[0] for name in file.keys()} == {"model", "optimizer", "random"}  # noqa: SIM118
    assert header["progress"] == PROGRESS


# --- kept --------------------------------------------------------------------------------------------------


def test_keep_as_costs_no_space_and_survives_the_next_save(saved):
    path, model = saved
    best = path.with_name("best.safetensors")
    keep_as(path, best.name)
    assert best.stat().st_ino == path.stat().st_ino
    first = best.read_bytes()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    step(model, optimizer, seed=3)
    save_checkpoint(path, model, optimizer, PROGRESS)
    assert best.read_bytes() == first != path.read_bytes()
    keep_as(path, best.name)
    assert best.read_bytes() == path.read_bytes()
    assert sorted(each.name for each in path.parent.iterdir()) == ["best.safetensors", "last.safetensors"]


def test_keep_as_without_hard_links(saved, monkeypatch):
    path, _ = saved
    best = path.with_name("best.safetensors")
    best.write_bytes(b"old")

    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")  # what Drive's file system says

    monkeypatch.setattr(type(path), "hardlink_to", refuse)
    keep_as(path, best.name)
    assert best.read_bytes() == path.read_bytes()
    assert best.stat().st_ino != path.stat().st_ino
    assert sorted(each.name for each in path.parent.iterdir()) == ["best.safetensors", "last.safetensors"]


def test_keep_as_after_a_kill_left_the_link_behind(saved):
    path, _ = saved
    path.with_name(f".best.safetensors.{os.getpid()}").write_bytes(b"left")
    keep_as(path, "best.safetensors")
    assert path.with_name("best.safetensors").read_bytes() == path.read_bytes()
