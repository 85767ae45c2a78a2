"""SkyTNT's midi_model: tokens derived by hand from the format's tables, and nets by their definition."""

import itertools
import json
import shutil
import sys
from collections import Counter

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from safetensors.torch import load_file

from qnnkit import adapters, measure, runs
from qnnkit.data.midi_events import BOS, EOS, EVENTS, WIDTH, MidiEvents
from qnnkit.data.pieces import blocks, collect, music, of_steps, tokenizer_of
from qnnkit.data.tokens import IGNORED
from qnnkit.models import causal_lm
from qnnkit.models.midi_model import MidiModel, config_of
from tests import toys
from tests.data.test_music_data import scale
from tests.notebooks.test_notebook_cells import executed
from tests.same import from_seed

symusic = pytest.importorskip("symusic")


def track(*events: tuple[int, list[int]]) -> bytes:
    """The bytes of a track from pairs (ticks since the previous event, bytes of a message)."""
    return b"".join(bytes([*([128 | wait >> 7] if wait > 127 else []), wait & 127, *m]) for wait, m in events)


def midi(kind: int, *tracks: bytes):
    """A score, read from the bytes of a file of type 0 or 1."""
    return symusic.Score.from_midi(toys.midi_bytes(*tracks, kind=kind))


def rows_of(ids: list[int]) -> list[list[int]]:
    return [ids[i : i + WIDTH] for i in range(0, len(ids), WIDTH)]


# Ids begin with PAD, BOS and EOS, then the kinds of events, then each parameter's values: v1 has 4 kinds, so
# `time1` begins at 7, `time2` at 7 + 128, `duration` at 135 + 16, `track` at 151 + 2048, and so on.
SMALL = [
    (0, [0xFF, 0x51, 3, 7, 0xA1, 0x20]),  # 500,000 microseconds: 120 beats per minute
    (0, [0xFF, 0x58, 4, 3, 2, 24, 8]),  # 3/4
    (0, [0xFF, 0x59, 2, 0xFF, 1]),  # one flat, minor
    (0, [0xC3, 5]),
    (0, [0xB3, 7, 100]),
    (0, [7, 102]),  # running status; channel 2, which is dropped
    (0, [0x93, 60, 90]),
    (48, [62, 80]),  # half a quarter later
    (48, [60, 0]),  # note off as in most files: velocity 0
    (0, [62, 0]),
    (0, [0x99, 36, 127]),
    (24, [36, 0]),
]
"""A file of type 0, and its tokens in v2 and v1, by hand from the tables of the format."""
IN_V2 = [
    [7, 9, 137, 2201, 3369 + 2, 3385 + 1],  # time_signature, 0, 0, track 0, nn 3 - 1, dd 2 - 1
    [8, 9, 137, 2201, 3389 + 6, 3404 + 1],  # key_signature, sf -1 + 7, minor
    [6, 9, 137, 2201, 2985 + 120],
    [4, 9, 137, 2202, 2329 + 0, 2601 + 5],  # patch_change in track 1, channel 0
    [5, 9, 137, 2202, 2329 + 0, 2729 + 7, 2857 + 100],
    [3, 9, 137, 2202, 2329 + 0, 2345 + 60, 2473 + 90, 153 + 16],  # lasts a quarter: 16
    [4, 9, 137, 2203, 2329 + 9, 2601 + 0],  # drums keep channel 9, in track 2
    [3, 9, 137 + 8, 2202, 2329 + 0, 2345 + 62, 2473 + 80, 153 + 8],
    [3, 9 + 1, 137, 2203, 2329 + 9, 2345 + 36, 2473 + 127, 153 + 4],  # one quarter after the event before
]
IN_V1 = [
    [6, 7, 135, 2199, 2983 + 120],
    [4, 7, 135, 2200, 2327 + 0, 2599 + 5],
    [5, 7, 135, 2200, 2327 + 0, 2727 + 7, 2855 + 100],
    [3, 7, 135, 2200, 151 + 16, 2327 + 0, 2343 + 60, 2471 + 90],
    [4, 7, 135, 2201, 2327 + 9, 2599 + 0],
    [3, 7, 135 + 8, 2200, 151 + 8, 2327 + 0, 2343 + 62, 2471 + 80],
    [3, 7 + 1, 135, 2201, 151 + 4, 2327 + 9, 2343 + 36, 2471 + 127],
]


@pytest.mark.parametrize(("version", "rows"), [("v2", IN_V2), ("v1", IN_V1)])
def test_tokens_of_a_small_file_by_hand(version, rows):
    ids, lost = MidiEvents(version).encode(midi(0, track(*SMALL)))
    assert rows_of(ids) == [row + [0] * (WIDTH - len(row)) for row in ([BOS], *rows, [EOS])]
    unwritten = {"time signatures": 1, "key signatures": 1} if version == "v1" else {}
    assert lost == {"control changes by less than 4": 1} | unwritten


NOTE = [(0, [0x90, 60, 90]), (96, [60, 0])]
HELD = [(0, [0x90, 48, 90]), *[(16000, [0xA0, 48, 1])] * 5, (0, [0x80, 48, 0])]
SILENT = [*NOTE, *[(16000, [0xA0, 60, 1])] * 3, (0, [0x90, 62, 90]), (96, [62, 0])]
UNISON = [(0, [0x90, 60, 90]), (0, [60, 80]), (96, [60, 0]), (0, [60, 0])]
METRES = [(0, [0xFF, 0x58, 4, n, unit, 24, 8]) for n, unit in ((5, 3), (3, 5), (3, 8))]
CASES = {  # tracks, and the expected losses
    "a melody of two tracks": ([NOTE, [*NOTE, (0, [62, 9]), (96, [62, 0])]], {}),
    "a silence of 500 quarters": ([SILENT], {}),
    "a note that is too long": ([HELD], {"ends of notes after 2,047 16ths": 1}),
    "bends": ([[*NOTE, (0, [0xE0, 0, 70])]], {"pitch bends": 1}),
    "5/8, 3/32 and 3/256": ([[*METRES, *NOTE]], {"time signatures": 2}),
    "twenty programs": ([[each for i in range(20) for each in ((0, [0xC0, i]), *NOTE)]], {}),
    "a unison in one track": ([UNISON], {"notes of one time and pitch": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_contents_of_a_file_are_restored_or_counted_as_lost(case):
    tracks, expected = CASES[case]
    events, score = MidiEvents(), midi(1, *(track(*each) for each in tracks))
    ids, lost = events.encode(score)
    assert lost == expected
    back = events.decode(ids)
    if "notes" not in "".join(expected):
        assert _notes(back) == _notes(score)
    if "twenty" not in case:  # they share channels, and are renumbered
        assert events.encode(back)[0] == ids


def _notes(score, lengths: bool = True) -> Counter:
    """Counts of notes by start and length in 16ths, pitch, velocity and program."""
    counts = Counter()
    for each in score.tracks:
        for note in each.notes:
            begin, length = (round(16 * ticks / score.tpq) for ticks in (note.time, note.duration))
            kind = note.pitch, note.velocity, each.program, each.is_drum
            counts[begin, max(1, length) * lengths, *kind] += 1
    return counts


def test_a_missing_key_is_derived_from_the_notes():
    keys = []
    for pitches in ((62, 64, 66, 67, 69, 71, 73), range(60, 72)):  # two sharps, and no scale
        notes = [(wait, [0x90, pitch, on]) for pitch in pitches for wait, on in ((0, 90), (24, 0))]
        rows = rows_of(MidiEvents().encode(midi(1, track(*notes)))[0])
        keys.append([row for row in rows if row[0] == 8])
    assert keys == [[[8, 9, 137, 2202, 3389 + 7 + 2, 3404, 0, 0]], []]


@pytest.mark.data
def test_real_files_keep_every_note():
    events = MidiEvents()
    for piece in collect(toys.real("music/nottingham_midi.zip"))[0][::50]:
        ids, lost = events.encode(piece.score)
        assert set(lost) <= {"pitch bends", "ends of notes after 2,047 16ths"}
        assert _notes(events.decode(ids), lengths=False) == _notes(piece.score, lengths=False)


def test_only_valid_rows_can_be_sampled():
    with toys.refused("version"):
        MidiEvents("v3")
    events, generator = MidiEvents(), torch.Generator().manual_seed(0)
    ids = torch.tensor([[BOS] + [0] * 7] * 3)
    for _ in range(40 * WIDTH):
        scores = events.allowed(ids, torch.randn(3, len(events), generator=generator))
        ids = torch.cat([ids, torch.multinomial(scores.softmax(1), 1, generator=generator)], 1)
    kinds = dict(enumerate(EVENTS["v2"], start=3))
    for row in ids.view(-1, WIDTH).tolist():
        assert row[0] in (BOS, EOS, *kinds)
        names = ("time1", "time2", "track", *EVENTS["v2"][kinds[row[0]]]) if row[0] in kinds else ()
        assert all(token in events.tokens[name] for name, token in zip(names, row[1:], strict=False))
        assert row[1 + len(names) :] == [0] * (7 - len(names))
    assert {row[0] for row in ids.view(-1, WIDTH).tolist()} == {*kinds, BOS}


# --- the nets


@pytest.fixture(scope="module")
def net():
    return from_seed(lambda: MidiModel(config_of("tiny"))).eval()


def test_logits_equal_the_definition(net):
    """An event is the sum of its tokens; the next one comes from `net`'s output for the previous ones."""
    ids = torch.randint(3, 3406, (2, 6 * WIDTH), generator=torch.Generator().manual_seed(1))
    events = ids.view(2, 6, WIDTH)
    with torch.no_grad():
        logits = net(input_ids=ids).logits
        hidden = net.net(inputs_embeds=net.net.embed_tokens(events).sum(2)).last_hidden_state
        for i, n in itertools.product(range(5), range(WIDTH)):
            begun = net.net_token.embed_tokens(events[:, i + 1, :n])
            made = net.net_token(inputs_embeds=torch.cat([hidden[:, i : i + 1], begun], 1)).last_hidden_state
            wanted = net.lm_head(made[:, -1])
            torch.testing.assert_close(logits[:, (i + 1) * WIDTH - 1 + n], wanted, rtol=0, atol=2e-6)


def test_generating_with_a_cache_equals_generating_without(net):
    events = net.config.events
    ids = torch.randint(9, 3406, (1, 2 * WIDTH + 3), generator=torch.Generator().manual_seed(2))
    ids[:, ::WIDTH] = 3
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    written = net.generate(input_ids=ids, max_new_tokens=12, logits_processor=[events.allowed], **options)
    piece = ids
    with torch.no_grad():
        for _ in range(12):
            scores = events.allowed(piece, net(input_ids=piece).logits[:, -1])
            piece = torch.cat([piece, scores.argmax(-1, keepdim=True)], 1)
    assert written.tolist() == piece.tolist()


def test_a_folder_in_the_published_form_loads_also_by_its_hub_name(net, tmp_path, monkeypatch):
    """From the Hub's cache, as after a first use; tests have no network."""
    place = tmp_path / "models--someone--midi"
    net.save_pretrained(folder := place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    assert config["model_type"] == "midi_model" and config["tokenizer"]["version"] == "v2"
    for name in (folder, "someone/midi"):
        assert tokenizer_of(name) == MidiEvents("v2")
        causal_lm(name).save_pretrained(tmp_path / "again")
        again = load_file(tmp_path / "again" / "model.safetensors")
        assert again.keys() == stored.keys() and all(torch.equal(again[key], stored[key]) for key in again)


def test_the_published_size_has_the_published_names_and_shapes():
    with torch.device("meta"):
        state = MidiModel(config_of("medium")).state_dict()
    weights = {name: tuple(each.shape) for name, each in state.items()}
    for name in ("net.embed_tokens", "lm_head", "net_token.embed_tokens"):
        assert weights[f"{name}.weight"] == (3406, 1024)
    assert weights["net.layers.11.mlp.gate_proj.weight"] == (4096, 1024)
    assert weights["net_token.layers.2.mlp.gate_proj.weight"] == (1024, 1024)
    assert not [name for name in weights if "layers.12" in name or "token.layers.3" in name]


# --- blocks, runs and adapters


def test_every_token_is_predicted_once_and_blocks_begin_with_events():
    events = MidiEvents()
    ids, _ = events.encode(midi(1, track(*NOTE * 40), track(*NOTE * 40)))
    part = blocks([("a/b", ids)], events, 10 * WIDTH)
    predicted = part.input_ids[part.labels != IGNORED].tolist()
    assert predicted == [token for token in ids[WIDTH:] if token != 0]
    assert {*part.input_ids[:, 0].tolist()} <= {BOS, *range(3, 9)}
    assert (part.labels[:, :WIDTH] == IGNORED).all(), "nothing precedes the first event"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    both = ("ann", 60), ("bob", 48)
    files = {f"{name}/{i}.mid": of_steps(scale(12, first + i)) for name, first in both for i in range(8)}
    folder = tmp_path_factory.mktemp("pieces")
    return toys.write(folder, {name: score.dumps_midi() for name, score in files.items()})


TINY = {"sequence_length": 64, "batch_size": 8, "device": "cpu", "threads": 1, "gradient_samples": 0}
TINY |= {"epochs": 1, "n_seeds": 1}


def test_a_base_model_is_trained_adapted_and_evaluated(pieces, tmp_path):
    given = TINY | {"data_dir": str(pieces), "tokens": "midi_v2"}
    base = toys.trained(tmp_path / "base", "music_llama", **given)
    runs.export(base)
    given = TINY | {"data_dir": str(pieces), "pretrained": str(base.folder / "model"), "composers": ["ann"]}
    assert adapters.config(runs.trained(base), "lora", target_modules=["k_proj"]).target_modules == {"k_proj"}
    run = runs.open_run(tmp_path / "adapters", "music_adapter", **given, controls=[], adapter_weights=600)
    [final] = runs.train_all(run)
    runs.export(run)
    assert {"test_loss_on_ann", "test_base_on_bob"} <= {*final}
    net = runs.trained(run)
    adapted = {name.split(".")[2] for name, each in net.named_parameters() if each.requires_grad}
    assert adapted == {"net", "net_token"}, "both Llamas are adapted"
    begun = shutil.copy(pieces / "ann" / "0.mid", tmp_path)
    [row] = runs.predict(run.folder, [begun])
    assert row["file"] == str(tmp_path / "0.continued.mid")
    assert runs.evaluate(run.folder, pieces / "bob")["loss"] > 0


def test_blocks_that_cut_events_and_sizes_of_other_models_raise_an_error(pieces, tmp_path):
    with toys.refused("sequence_length"):
        music(pieces, tokens="midi_v1", sequence_length=100)
    splits = music(pieces, tokens="midi_v1", sequence_length=64)
    assert splits.sizes == {"vocabulary": 3239, "length": 64, "events": "v1"}
    settings = TINY | {"data_dir": str(pieces), "tokens": "midi_v1", "size": "3b"}
    with pytest.raises(ValueError, match=r"`size` must be .* The choices are tiny, small, medium, large"):
        runs.open_run(tmp_path / "run", "music_llama", **settings).build("hybrid", 0)


def test_the_notebook_says_whether_the_model_fits_here(pieces, tmp_path, monkeypatch):
    plan, plans = measure.plan, []

    def once(work, measure=True):
        """Each plan takes seconds: one is used for all."""
        plans[:] = plans or [plan(work, seconds=0.1)]
        return plans[0]

    reached = {"device": "cpu", "bandwidth_gb_s": 9, "overhead_us": 5, "tflops": {"float32": 0.1}}
    monkeypatch.setattr(sys.modules["qnnkit.measure.plan"], "figures", lambda *args: reached)
    monkeypatch.setattr(measure, "plan", once)
    sizes = {"size": "tiny", "sequence_length": 64, "n_samples": 2, "n_events": 4, "pieces": 20}
    with matplotlib.rc_context({"backend": "agg"}):
        names = executed("08_midi_model", data_dir=str(pieces), run_dir=str(tmp_path / "run"), **sizes)
        pyplot.close("all")
    assert names["weights"] == sum(weight.numel() for weight in names["model"].parameters())
    assert (names["written"]["tokens"] == 4 * WIDTH).all()
    peaks, speed = names["table"]["GB"], names["events_per_second"]
    assert len(peaks) == 5 and peaks.between(0.05, 12).all(), "mostly the memory of the process itself"
    assert names["verdict"]["met"].tolist() == [speed >= 4, names["days"] <= 7, peaks.min() < 12]
    assert (tmp_path / "run" / "music" / "sample.mid").stat().st_size > 0
