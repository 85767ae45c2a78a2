"""CLIP: the same numbers as transformers' own, heads and their controls, weights from folders."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from qnnkit.data.tokenizers import encode, of_captions
from qnnkit.layers import controls, count_parameters, exchanged_parameters
from qnnkit.models import Clip
from qnnkit.models.clip import CLIP, CLIP_MEAN, CLIP_STD, LARGEST_LOGIT_SCALE, configuration
from tests.toys import refused

HEADS = ("full", "linear", "quantum")
TEXTS = ["a photo of a cat", "a dog", "two dogs and a cat on a mat"]
SIDE = 16


def tokenizer_of(texts: list[str], length: int = 10) -> Any:
    return of_captions(None, texts, length)


TOKENIZER = tokenizer_of(TEXTS)


def pixels_of(n: int = 3, channels: int = 3, seed: int = 0) -> torch.Tensor:
    shape = (n, channels, SIDE, SIDE)
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def batch_of(channels: int = 3) -> dict[str, torch.Tensor]:
    ids, mask = encode(TOKENIZER, TEXTS)
    return {"pixel_values": pixels_of(channels=channels), "input_ids": ids, "attention_mask": mask}


def clip_of(head: str = "linear", channels: int = 3, **options) -> Clip:
    sizes = {"tokenizer": TOKENIZER, "channels": channels, "image_size": (SIDE, SIDE)}
    sizes |= {name: options.pop(name) for name in (*sizes, "seed", "backend") if name in options}
    return Clip(**sizes, head=head, **{"patch_size": 8} | options)


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("head", HEADS)
def test_embeddings_are_directions_sample_by_sample_in_every_precision(head, channels):
    clip, batch = clip_of(head, channels).eval(), batch_of(channels)
    single = clip(**batch)
    alone = [clip(**{name: values[row : row + 1] for name, values in batch.items()}) for row in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        half = clip(**batch)
    double, alone = clip.double()(**batch), map(torch.cat, zip(*alone, strict=True))
    for one, two, four, parts in zip(half, single, double, alone, strict=True):
        types = torch.float32, torch.float32, torch.float64
        assert two.shape == (3, 64) and (one.dtype, two.dtype, four.dtype) == types
        close(two.norm(dim=1), torch.ones(3))
        close(two, parts, 1e-5)
        close(two.double(), four, 1e-5)
        close(one.double(), four, 0.1)
        assert (two[0] - two[1]).abs().max() > 1e-3, "all alike"


def test_the_seed_decides_the_start_alone():
    one, again, other = (clip_of("quantum", seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    drawn = ("net.text_projection.circuit.weights", "net.visual_projection.down.weight")
    assert all(not torch.equal(one[name], other[name]) for name in drawn)
    assert not torch.equal(one[drawn[0]], one[drawn[0].replace("text", "visual")]), "two circuits, one start"


# --- against transformers ----------------------------------------------------------------------------------


def test_a_full_head_gives_what_transformers_gives():
    """Of pixels that are scaled as its image processor does."""
    clip, batch = clip_of("full").eval(), batch_of()
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    theirs = clip.net(**batch | {"pixel_values": (batch["pixel_values"] / 255 - mean) / std})
    images, texts = clip(**batch)
    close(images, theirs.image_embeds)
    close(texts, theirs.text_embeds)


def test_texts_are_read_at_their_end():
    clip, batch = clip_of("full").eval(), batch_of()
    ids, ends = batch["input_ids"], batch["attention_mask"].sum(1) - 1
    assert (ids[torch.arange(3), ends] == TOKENIZER.eos_token_id).all()
    states = clip.net.text_model(input_ids=ids, attention_mask=batch["attention_mask"]).last_hidden_state
    expected = clip.net.text_projection(states[torch.arange(3), ends])
    close(clip.embed_texts(ids, batch["attention_mask"]), expected / expected.norm(dim=1, keepdim=True))
    other = torch.where(batch["attention_mask"] == 0, 5, ids)  # what comes after the end is no matter
    close(clip.embed_texts(other), clip.embed_texts(ids))
    other = ids.clone()
    other[:, 1] = 5
    assert (clip.embed_texts(other) - clip.embed_texts(ids)).abs().max() > 1e-3


@pytest.mark.parametrize("size", CLIP)
def test_sizes(size):
    from transformers import CLIPModel

    low, high = {"tiny": (1e5, 5e5), "small": (5e6, 1e7), "77m": (7.665e7, 7.675e7)}[size]
    for vocabulary in (300, 900):  # the size that is named by its weights has them whatever the vocabulary
        tokenizer = of_captions(None, [f"word{i}" for i in range(vocabulary)])
        with torch.device("meta"):
            net = CLIPModel(configuration(size, tokenizer=tokenizer))
        assert low < sum(weight.numel() for weight in net.parameters()) < high
        assert net.config.text_config.eos_token_id == tokenizer.eos_token_id


# --- the temperature ---------------------------------------------------------------------------------------


def test_the_scale_begins_at_1_over_007_and_stays_below_100():
    clip = clip_of()
    assert float(clip.scale().detach()) == pytest.approx(1 / 0.07, rel=1e-4)
    with torch.no_grad():
        clip.net.logit_scale.fill_(7.0)
    assert float(clip.eval().scale().detach()) == pytest.approx(100, rel=1e-5)
    assert float(clip.net.logit_scale.detach()) == 7, "evaluation changed a weight"
    clip.train().scale().neg().backward()
    assert float(clip.net.logit_scale.detach()) == pytest.approx(LARGEST_LOGIT_SCALE)
    assert float(clip.net.logit_scale.grad) == pytest.approx(-100, rel=1e-5), "no way back from the bound"
    assert pytest.approx(math.log(100)) == LARGEST_LOGIT_SCALE


# --- controls ----------------------------------------------------------------------------------------------


def test_controls_of_equal_counts():
    clip = clip_of("quantum", circuit="hardware_efficient", n_layers=3).eval()
    before, found = clip(**batch_of()), controls(clip)
    found = {name: found[name] for name in ("no_entanglement", "frozen_random", "classical", "no_quantum")}
    counts = {name: sum(count_parameters(net).values()) for name, net in found.items()}
    n_weights = sum(weight.numel() for weight in exchanged_parameters(clip))
    whole = sum(weight.numel() for weight in clip.parameters())
    assert n_weights == 2 * 24 and counts.pop("no_quantum") == whole - n_weights
    assert set(counts.values()) == {whole}
    for name, net in found.items():
        for one, other in zip(net(**batch_of()), before, strict=True):
            assert one.shape == (3, 64) and (one - other).abs().max() > 1e-4, name
    linear = {name: value.shape for name, value in clip_of("linear").state_dict().items()}
    quantum = {name: value.shape for name, value in clip.state_dict().items() if "circuit" not in name}
    assert linear == quantum, "a linear head is the quantum one without its circuit"


def test_angles_lie_between_0_and_pi():
    clip, seen = clip_of("quantum", backend="batched"), []
    head = clip.net.visual_projection
    head.down.weight.data.mul_(100)
    with head.circuit.register_forward_pre_hook(lambda m, given: seen.append(given[0].detach())):
        clip.embed_images(pixels_of())
    assert seen[0].shape == (3, 4) and 0 <= float(seen[0].min()) < 0.1 < 3 < float(seen[0].max()) <= 3.15


# --- weights of a folder -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small CLIP in a folder, as transformers saves it, with a tokenizer."""
    folder = tmp_path_factory.mktemp("clip")
    clip_of("full", seed=5).net.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_weights_of_a_local_folder(saved):
    given = {"tokenizer": of_captions(saved, ()), "pretrained": str(saved)}
    one, same = (clip_of("full", **each).eval()(**batch_of()) for each in (given, {"seed": 5}))
    close(one, same)
    other, stored = clip_of("quantum", n_qubits=3, **given), load_file(saved / "model.safetensors")
    kept = {name.removeprefix("net."): value for name, value in other.state_dict().items()}
    assert all(torch.equal(kept[name], value) for name, value in stored.items() if "projection" not in name)
    assert other(**batch_of())[0].shape == (3, 64)
    grey, colour = (clip_of("full", channels, pretrained=str(saved)).eval() for channels in (1, 3))
    image = pixels_of(channels=1)
    close(grey.embed_images(image), colour.embed_images(image.expand(-1, 3, -1, -1)))


def ends_with_2() -> Any:
    wrong = copy.deepcopy(TOKENIZER)
    wrong.eos_token = wrong.convert_ids_to_tokens(2)
    return wrong


MANY_WORDS = [" ".join(f"word{i}" for i in range(99))]


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("size", {"size": "large"}),
        ("patch_size", {"patch_size": 5}),
        ("image_size", {"image_size": (16, 24)}),
        ("pretrained", {"pretrained": "nobody/clip"}),
        ("tokenizer", {"tokenizer": ends_with_2}),
        ("image_size", {"pretrained": None, "image_size": (32, 32)}),
        ("tokenizer", {"pretrained": None, "tokenizer": lambda: tokenizer_of(MANY_WORDS)}),
        ("tokenizer", {"pretrained": None, "tokenizer": lambda: tokenizer_of(TEXTS, 40)}),
    ],
)
def test_what_is_refused(monkeypatch, saved, argument, options):
    """Also data that published weights, those of None here, do not fit."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    given = {name: value() if callable(value) else value for name, value in options.items()}
    given |= {"pretrained": given["pretrained"] or str(saved)} if "pretrained" in given else {}
    with refused(argument):
        clip_of(**given)


def test_weights_of_another_net_and_pixels_that_are_none(tmp_path):
    clip_of("full", 1).net.save_pretrained(tmp_path)
    with refused("channels"):
        clip_of("full", 3, pretrained=str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "resnet"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused("pretrained"):
        clip_of("full", 1, pretrained=str(tmp_path))
    with refused("pixel_values"):
        clip_of().embed_images(pixels_of().float())
