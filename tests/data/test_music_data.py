"""Music in files and as tokens: forms read completely or refused, blocks, splits by piece, transposition."""

import gzip
import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from symusic import ControlChange, KeySignature, Note, Score, Tempo, TimeSignature, Track

from qnnkit.data import pieces
from qnnkit.data.pieces import OFF_GRID, OTHERS, collect, music, of_midi, of_steps, transposed, writing
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import IGNORED, TokenSet
from tests.toys import archive, by_composer, midi_bytes, places_of, real, refused, write

TOKENS = pieces.tokenizer_of()
BOS, EOS = (TOKENS[name] for name in ("BOS_None", "EOS_None"))


def heard(score) -> Counter:
    """What defines a note: program (-1 for drums), start and length in quarters, pitch."""
    of = [(-1 if t.is_drum else t.program, note) for t in score.to("quarter").tracks for note in t.notes]
    return Counter((who, round(n.start, 4), round(n.duration, 4), n.pitch) for who, n in of)


def track(*notes: tuple[int, int, int, int], **options) -> Track:
    made = Track(**options)
    made.notes.extend(Note(*each) for each in notes)
    return made


def band(tpq: int = 480) -> Score:
    """Unisons of several instruments, lowest and highest drums, triplets, two tempos and a long note."""
    score, third = Score(tpq), tpq // 3
    triplets = [*((i * third, third, 60 + i, 20 + 9 * i) for i in range(12)), (0, 20 * tpq, 127, 80)]
    beats = [(i * tpq // 8, tpq // 8, pitch, 100) for i in range(8) for pitch in (0, 36, 127)]
    score.tracks.extend([*(track(*triplets, program=each) for each in (0, 40, 40, 73))])
    score.tracks.append(track(*beats, is_drum=True))
    score.tempos.extend([Tempo(0, 87), Tempo(4 * tpq, 143)])
    return score


def scale(n: int, first: int = 60) -> list[list[int]]:
    """Two voices in steps: one moves, one holds each note for four steps."""
    return [[first + i % 7, first - 12 - i // 4 % 5] for i in range(n)]


def scales(*lengths: int) -> dict[str, list[list[int]]]:
    """Pieces as JSON."""
    return {f"piece{i}": scale(n, 60 + i % 5) for i, n in enumerate(lengths)}


# --- notes as tokens


def test_every_note_of_a_band_keeps_its_program_velocity_and_tempo():
    score = band()
    again = TOKENS.decode(TOKENS.encode(score).ids)
    assert heard(again) == heard(score) and again.note_num() == score.note_num() == 4 * 13 + 24
    assert heard(of_midi(again.dumps_midi())) == heard(score)
    speeds = [(tempo.time / again.tpq, round(tempo.qpm)) for tempo in again.tempos]
    assert speeds == [(0, 87), (4, 143)]
    before, after = (sorted((n.pitch, n.velocity) for n in each.tracks[0].notes) for each in (score, again))
    assert max(abs(x - y) for (_, x), (_, y) in zip(before, after, strict=True)) <= 2  # one of 32 steps


def test_notes_moved_to_the_grid_are_counted(tmp_path):
    score, on_grid = Score(480), of_steps(scale(30))
    piano = track((0, 480, 60, 64), (481, 480, 62, 64), (960, 470, 64, 64))
    piano.controls.append(ControlChange(0, 7, 100))
    score.tracks.append(piano)
    score.tempos.extend([Tempo(0, 300), Tempo(480, 260.4), Tempo(960, 1e9)])  # written as infinity in a file
    score.time_signatures.append(TimeSignature(0, 3, 4))
    for i, each in enumerate((on_grid, on_grid, on_grid, score)):
        each.dump_midi(tmp_path / f"{i}.mid")
    assert f"Not in the tokens: 4 {OTHERS}, 2 {OFF_GRID}." in music(tmp_path).notes


def test_the_tokenizer_is_saved_as_json_next_to_a_model(tmp_path, monkeypatch):
    TOKENS.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    again = pieces.tokenizer_of(tmp_path)
    assert again == TOKENS and len(again) == len(TOKENS) == 950
    with refused("tokenizer"):
        pieces.tokenizer_of(tmp_path, "midi_v2")
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with refused("tokenizer"):
        pieces.tokenizer_of(tmp_path)
    monkeypatch.setitem(sys.modules, "miditok", None)
    with refused("miditok"):
        music("nowhere")


# --- file forms: name -> (file, content, notes read from it, or words of the error)


NOTE, DRUM = bytes([0, 0x90, 60, 64, 24, 0x80, 60, 0]), bytes([0, 0x99, 36, 64, 24, 0x89, 36, 0])
TWO = bytes([0, 0x90, 60, 64, 0, 0x91, 60, 64, 24, 0x80, 60, 0, 0, 0x81, 60, 0])
ONE = midi_bytes(NOTE)
CHORALE = json.dumps({"train": [scale(8)], "valid": [scale(8)], "test": [scale(8)]}).encode()
N = of_steps(scale(8)).note_num()
FORMS = {
    "MIDI of type 1": ("a.mid", band().dumps_midi(), 76),
    "MIDI of type 0, two channels": ("a.mid", midi_bytes(TWO, kind=0), 2),
    "percussion only": ("a.Mid", midi_bytes(DRUM), 1),
    "a zip of folders": ("a.zip", {"ann/1.mid": ONE, "bob/2.MID": midi_bytes(DRUM)}, 2),
    "a note without an end": ("a.mid", midi_bytes(b"\0\x90\x3e\x40" + NOTE), 1),
    "JSON by split": ("a.json", CHORALE, 3 * N),
    "JSON by name": ("a.json", json.dumps(scales(8, 8)).encode(), 2 * N),
    "voices": ("a.json", b'{"x": [[60, 60, -1], [60, null, 62.0], []]}', 3),  # two of them in unison
    "a damaged file too": ("a.zip", {"a/1.mid": b"MThd", "a/2.mid": ONE}, 1),
    "a piece without notes": ("a.json", json.dumps({"x": scale(8), "y": [[]]}).encode(), N),
    "no MIDI": ("a.mid", b"no MIDI at all", "MThd"),
    "cut": ("a.mid", ONE[:-9], "chunk"),
    "MIDI of 0 notes": ("a.mid", midi_bytes(b""), "no notes"),
    "in seconds": ("a.mid", midi_bytes(NOTE, ticks=0xE728), "ticks"),
    "no ticks": ("a.mid", midi_bytes(NOTE, ticks=0), "longer"),
    "MIDI of type 2": ("a.mid", midi_bytes(NOTE, NOTE, kind=2), "type 2"),
    "too deep": ("a.json", b"[" * 10**5, "a.json"),
    "not UTF-8": ("a.json", b"\xff\xfe{}", "a.json"),
    "an empty JSON": ("a.json", b"{}", "hold readable music"),
    "another file in a zip": ("a.zip", {"a.mxl": b""}, "Left out files that are not music"),
    "flat": ("a.json", b'{"a": [60, 62]}', "list"),
    "no pitch": ("a.json", b'{"a": [[128]]}', "127"),
    "another file": ("a.xml", b"<score/>", "be a folder or end in"),
}
LEFT_OUT = {"a damaged file too": "a/1.mid", "a piece without notes": "y (no notes)"}
LEFT_OUT |= {"a note without an end": "a.mid (notes without an end: 1)"}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_completely_or_raises_an_error(form, tmp_path):
    name, content, expected = FORMS[form]
    path = tmp_path / name
    archive(path, content) if isinstance(content, dict) else write(tmp_path, {name: content})
    if isinstance(expected, str):
        with refused("root", says=expected):
            collect(path)
        return
    for root in (path,) if path.suffix == ".zip" else (path, path.parent):
        loaded, notes = collect(root)
        assert sum(piece.score.note_num() for piece in loaded) == expected
        assert LEFT_OUT.get(form, "") in "".join(notes)


def test_composers_can_be_folders_archives_and_files(tmp_path):
    files = {name: ONE for name in ("ann/1.mid", "deep/bob/1.MIDI", "1.mid")}
    root = write(tmp_path / "root", files | {"dan.JSON.gz": gzip.compress(CHORALE)})
    archive(root / "zipped.zip", {"1.mid": ONE})
    pieces, [note] = collect(root)
    assert [piece.composer for piece in pieces] == ["ann", "bob", *["dan"] * 3, "root"] and "zipped" in note
    assert collect(root / "zipped.zip")[0][0].composer == "zipped"
    pieces, notes = collect(root, ["ann"])
    assert [(piece.composer, piece.name) for piece in pieces] == [("ann", "1")] and notes == []


# --- blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two composers: ten pieces of many blocks, five of one or two."""
    ann, bob = (70 + 9 * i for i in range(10)), (20 + 5 * i for i in range(5))
    return write(tmp_path_factory.mktemp("music"), {"ann.json": scales(*ann), "bob.json": scales(*bob)})


def test_blocks_cover_every_piece_and_predict_every_token(folder):
    """A block begins with the last token of the previous one, and predicts all tokens after it."""
    splits = music(folder, sequence_length=64)
    scores = {f"{piece.composer}/{piece.name}": piece.score for piece in collect(folder)[0]}
    assert splits.name == "music" and splits.length == 64 and splits.vocabulary == len(TOKENS)
    assert sorted(places_of(splits)) == sorted(scores)  # each piece is in exactly one split
    for part in map(splits.split, SPLITS):
        assert part.input_ids.dtype == part.labels.dtype == torch.int64
        for source in {*part.sources}:
            rows = [row for row, name in enumerate(part.sources) if name == source]
            ids, labels = [BOS, *TOKENS.encode(scores[source]).ids, EOS], part.labels[rows]
            for number, block in enumerate(part.input_ids[rows].tolist()):
                expected = ids[63 * number :][:64]
                assert block == expected + [0] * (64 - len(expected))
            assert labels[labels != IGNORED].tolist() == ids[1:] and (labels[:, 0] == IGNORED).all()


def test_a_composer_is_split_the_same_alone_and_with_others(folder):
    for name, part in by_composer(music(folder, sequence_length=64)).items():
        assert music(folder, composers=[name], sequence_length=64).fingerprint() == part.fingerprint()
        assert places_of(music(folder, composers=[name], sequence_length=128)) == places_of(part)


def test_given_splits_are_kept(tmp_path):
    sides = {"test": [scale(20)], "train": [scale(30), scale(31)], "valid": [scale(30)]}
    splits = music(write(tmp_path, {"own.json": sides}), split_seed=1, transpose=0)
    names = ("train-000", "train-001", "validation-000", "test-000")
    assert splits.augment is None
    assert places_of(splits) == {f"own/{name}": name.partition("-")[0] for name in names}


def test_a_composer_with_too_few_pieces_is_skipped_or_refused_if_alone(tmp_path):
    write(tmp_path, {"ann.json": scales(*[20] * 6), "few.json": scales(20, 20)})
    splits = music(tmp_path, sequence_length=64)
    assert list(by_composer(splits)) == ["ann"]
    assert "Left out composers of fewer than three pieces: few." in splits.notes
    bad = [("root", {"composers": ["few"]}), ("composers", {"composers": ["x"]}), ("tokens", {"tokens": "x"})]
    bad += [("sequence_length", {"sequence_length": n, "tokens": "midi_v2"}) for n in (8, 12)]
    for argument, options in bad:
        with refused(argument):
            music(tmp_path, **options)


# --- transposition


def in_major(pitches) -> Score:
    """A piano and a drum, in G major."""
    score, notes = Score(24), [(24 * i, 24, pitch, 64) for i, pitch in enumerate(pitches)]
    score.tracks.extend([track(*notes), track((0, 24, 36, 64), is_drum=True)])
    score.key_signatures.append(KeySignature(0, 1, 0))
    return score


RANGES = {(60, 67): range(-5, 6), (1,): range(-1, 6), (125,): range(-5, 3), (0, 127): range(1), (): range(1)}


@pytest.mark.parametrize("kind", ["remi", "midi_v2"])
@pytest.mark.parametrize("pitches", RANGES)
def test_transposition_shifts_pitches_and_keys_within_midi_but_no_drums(pitches, kind):
    tokens, seen = writing(pieces.tokenizer_of(tokens=kind)), set()
    ids = torch.tensor([tokens.encode(in_major(pitches))[0]])
    labels = ids.masked_fill(torch.arange(ids.shape[1]) < 5, IGNORED)
    before = TokenSet(ids, labels, ("a/b",))
    for epoch in range(80):
        after = transposed(before, epoch, most=5, tokens=tokens, seed=7)
        score = tokens.decode(after.input_ids[0].tolist())
        tracks = {each.is_drum: [note.pitch for note in each.notes] for each in score.tracks}
        seen.add(shift := tracks[False][0] - pitches[0] if pitches else 0)
        assert (tracks[True], tracks.get(False, [])) == ([36], [pitch + shift for pitch in pitches])
        assert after.labels[0, :5].tolist() == [IGNORED] * 5 and after.sources == before.sources
        assert torch.equal(after.labels[0, 5:], after.input_ids[0, 5:])
        for signature in score.key_signatures if pitches else ():  # a semitone is seven fifths
            assert (signature.key - 1 - 7 * shift) % 12 == 0 and -6 < signature.key < 7
    assert seen == {*RANGES[pitches]} and len(score.key_signatures) == (kind == "midi_v2")
    others = [transposed(before, 0, most=5, tokens=tokens, seed=seed) for seed in range(9)]
    assert len(seen) == 1 or len({int(each.input_ids.sum()) for each in others}) > 1


def test_training_batches_are_transposed_per_epoch(folder):
    splits = music(folder, sequence_length=64)
    for split, change in (("train", splits.augment), ("test", lambda part, epoch: part)):
        loader = splits.batches(split, 4, shuffle=False)
        for epoch in (3, 4):
            loader.set_epoch(epoch)
            ids = torch.cat([batch["input_ids"] for batch in loader])
            assert torch.equal(ids, change(splits.split(split), epoch).input_ids)


# --- the real data


REAL = {
    "Jsb16thSeparated.json": (382, 80_678),
    "jsb-chorales-16th.json": (382, 80_678),
    "jsb-chorales-quarter.json": (382, 56_441),
    "mozart-16th.json": (69, 82_628),
    "nottingham_midi.zip": (1034, 356_269),
}
"""Numbers of pieces and notes; those of MIDI as mido counts them."""


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_notes_are_restored(name):
    """All with program, pitch, start and length, except the few off the grid."""
    pieces, n_off = collect(real("music", name))[0], 0
    assert (len(pieces), sum(piece.score.note_num() for piece in pieces)) == REAL[name]
    sides = Counter(piece.side for piece in pieces)  # splits named by the file, if any
    chorales = {"train": 229, "validation": 76, "test": 77}
    assert sides == (chorales if "jsb" in name.lower() else {"any": len(pieces)})
    for piece in pieces[:: len(pieces) // 8]:
        again = TOKENS.decode(TOKENS.encode(piece.score).ids)
        assert again.note_num() == piece.score.note_num()
        n_off += (heard(piece.score) - heard(again)).total()
    assert n_off <= 100


@pytest.mark.data
def test_the_splits_of_real_sonatas_never_change(monkeypatch):
    numbers = itertools.count(3)  # one token per piece: real tokens take long
    monkeypatch.setattr(pieces.Remi, "encode", lambda self, score: ([BOS, next(numbers), EOS], Counter()))
    splits = music(real("music"), composers=["mozart-16th"])
    assert [len({*splits.split(side).sources}) for side in SPLITS] == [56, 5, 8]
    held_out = [source.partition("/")[2] for source in sorted({*splits.validation.sources})]
    assert held_out == ["sonata02-1", "sonata06-3i", "sonata10-1", "sonata11-1f", "sonata12-2"]
