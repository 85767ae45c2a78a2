"""Music as events and as MIDI: what goes in comes out, on made-up pieces and on the real data."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys

import mido
import pytest

from qnnkit.data.music_events import (
    DURATION,
    END,
    LONGEST,
    PITCH,
    SIZE,
    START,
    TIME,
    MusicTokenizer,
    Note,
    Piece,
)
from qnnkit.data.music_midi import parse_midi, read_midi, write_midi
from qnnkit.data.music_sources import collect
from qnnkit.data.places import open_place
from qnnkit.tasks.music import Grammar
from tests import toys

TOKENIZER = MusicTokenizer()


def made_up(seed: int, n_steps: int = 60, densest: int = 6) -> Piece:
    """Notes at random, many of them struck again, over rests and long notes alike."""
    chance = random.Random(seed)
    notes = []
    for start in range(n_steps):
        if chance.random() < 0.6:
            for _ in range(chance.randint(1, densest)):
                length = chance.choice([1, 1, 2, 4, 16, 17, 32, 40])
                notes.append(Note(start, chance.choice([0, 40, 41, 60, 64, 100, 127]), length))
    return Piece.of_notes(f"made up {seed}", notes, n_steps)


PIECES = {
    "nothing": Piece("a", ()),
    "silence": Piece("a", ((),) * 37),
    "one note": Piece("a", ((60,),)),
    "all pitches": Piece("a", (tuple(range(128)),) * 2),
    "rests around": Piece("a", ((), (), (60,), (), (62,), ())),
    "a bar": Piece("a", ((60,),) * 16),
    "two bars": Piece("a", ((60,),) * 32),
    "a bar and one": Piece("a", ((60,),) * 17),
    "a bar of rest": Piece("a", (((),) * 16 + ((60,),))),
    "struck again": Piece("a", ((60, 64),) * 4, again=((), (60,), (60, 64), ())),
} | {f"made up {seed}": made_up(seed) for seed in range(12)}


# --- pieces


def test_notes_by_hand():
    piece = Piece("a", ((64, 60, 64), ()), again=((), ()))
    assert piece.steps == ((60, 64), ()) and piece.again == () and len(piece) == 2
    piece = Piece("a", ((60, 64), (60, 64), (60, 67), ()), again=((), (60,), (), ()))
    assert piece.notes() == (Note(0, 64, 2), Note(0, 60, 1), Note(1, 60, 2), Note(2, 67, 1))
    piece = Piece.of_notes("a", [Note(0, 60, 8), Note(2, 60, 2), Note(0, 60, 1), Note(7, 62, 9)], 8)
    assert piece.steps == ((60,),) * 7 + ((60, 62),) and piece.again == ((), (), (60,), *((),) * 5)


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_notes_make_the_piece_and_its_parts(piece):
    shuffled = list(piece.notes())
    random.Random(1).shuffle(shuffled)
    assert Piece.of_notes(piece.name, shuffled, len(piece)) == piece == piece.part(0, len(piece))
    sounding = [set() for _ in piece.steps]
    for start, pitch, duration in shuffled:
        assert duration > 0
        for step in sounding[start : start + duration]:
            assert pitch not in step  # a pitch sounds once only
            step.add(pitch)
    assert [tuple(sorted(step)) for step in sounding] == list(piece.steps)
    part = piece.part(5, 20)
    assert part.steps == piece.steps[5:20] and (not part.again or part.again[0] == ())
    assert part.again[1:] == (piece.again[6:20] if part.again else ())


@pytest.mark.parametrize(
    ("argument", "error", "steps", "again"),
    [
        ("steps", ValueError, ((60, 128),), ()),
        ("steps", ValueError, ((-1,),), ()),
        ("steps", TypeError, ((60.5,),), ()),
        ("steps", TypeError, ((True,),), ()),
        ("again", ValueError, ((60,), (60,)), ((60,), ())),  # nothing sounded before the first step
        ("again", ValueError, ((60,), (62,)), ((), (62,))),
        ("again", ValueError, ((60,), (60,)), ((60,),)),
    ],
)
def test_a_piece_that_is_none(argument, error, steps, again):
    with toys.refused(argument, error):
        Piece("a", steps, again=again)


# --- events


def test_events_by_hand():
    chord = (48, 55, 64, 72)
    piece = Piece("a", (chord,) * 4 + ((48, 65),) * 2 + ((48,),) * 14)
    told = "start, duration 4, pitch 72, pitch 64, pitch 55, duration 16, duration 4, pitch 48, time 4, "
    told += "duration 2, pitch 65, time 16, end"
    ids = TOKENIZER.encode(piece)
    assert ", ".join(TOKENIZER.names[token] for token in ids) == told
    assert ids[:3] == [START, DURATION + 3, PITCH + 72] and ids[-2:] == [TIME + 15, END]
    assert TOKENIZER.encode(piece, marks=False) == ids[1:-1]


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_events_and_back(piece):
    ids = TOKENIZER.encode(piece)
    assert TOKENIZER.decode(ids, piece.name) == piece
    assert all(0 <= token < SIZE for token in ids)
    assert TOKENIZER.decode([*ids, 0, 0], piece.name) == piece  # padding
    check_grammar(ids[:-1])


def check_grammar(ids):
    """Every event of a piece is one that may come next."""
    grammar = Grammar()
    grammar.read(ids[0])
    for token in ids[1:]:
        assert grammar.allowed()[token], TOKENIZER.names[token]
        grammar.read(token)


@pytest.mark.parametrize("piece", [PIECES["made up 3"], PIECES["two bars"]], ids=["made up", "two bars"])
def test_what_begins_after_a_time_is_music_by_itself(piece):
    ids = TOKENIZER.encode(piece, marks=False)
    for place, token in enumerate(ids):
        if TIME <= token < DURATION and not (token == TIME + LONGEST - 1 and place + 1 < len(ids)):
            rest = TOKENIZER.decode(ids[place + 1 :])
            begun = len(piece) - len(rest)
            expected = [note for note in piece.notes() if note.start >= begun]
            again = [Note(start + begun, pitch, length) for start, pitch, length in rest.notes()]
            assert sorted(again) == sorted(expected)


@pytest.mark.parametrize(
    "ids", [[PITCH + 60], [TIME, PITCH + 60], [DURATION, PITCH, TIME, PITCH], [SIZE], [-1]]
)
def test_events_that_are_no_music(ids):
    with toys.refused("ids"):
        TOKENIZER.decode(ids)


def test_the_grammar_always_goes_on_and_time_passes():
    """Whatever is drawn, something may follow and all is decoded; the worst draws end each step, too."""
    longest = DURATION + LONGEST - 1
    worst = [lambda tokens: longest if longest in tokens else max(tokens), max, min]
    for choose in (random.Random(0).choice, *worst):
        grammar, ids = Grammar(), [START]
        grammar.read(START)
        for _ in range(3000):
            allowed = grammar.allowed().nonzero().flatten().tolist()
            assert allowed and not set(allowed) & {0, START, END}
            ids.append(choose(allowed))
            grammar.read(ids[-1])
        piece = TOKENIZER.decode([*ids, TIME + LONGEST - 1])
        assert len(piece) == grammar.steps + LONGEST
        runs = [len(list(run)) for token, run in itertools.groupby(ids) if token == longest]
        assert max(runs, default=0) <= 16  # no note is told for ever
        assert grammar.steps or choose is worst[0]  # that one takes 17 events for each of 128 pitches


def test_the_grammar_bars_what_encode_never_writes():
    grammar = Grammar()
    for token in (START, DURATION + 3, PITCH + 60, TIME + 3):
        grammar.read(token)
    assert not grammar.allowed()[TIME:DURATION].any() and not grammar.allowed()[PITCH:].any()
    grammar.read(DURATION)
    assert not grammar.allowed()[:PITCH].any() and grammar.allowed()[PITCH:].all()
    grammar.read(PITCH)
    assert grammar.allowed().nonzero().flatten().tolist() == list(range(TIME, DURATION))  # none is lower


def test_the_tokenizer_is_kept(tmp_path):
    assert len(TOKENIZER) == len(TOKENIZER.names) == len(set(TOKENIZER.names)) == 163
    TOKENIZER.save_pretrained(tmp_path / "new")
    assert len(MusicTokenizer.from_pretrained(tmp_path / "new")) == SIZE
    with toys.refused("folder", FileNotFoundError):
        MusicTokenizer.from_pretrained(tmp_path)
    path = tmp_path / "new" / "music_tokenizer.json"
    for content in ("{}", "[", "[]", json.dumps({"names": TOKENIZER.names[:-1]})):
        path.write_text(content)
        with toys.refused("folder"):
            MusicTokenizer.from_pretrained(tmp_path / "new")


# --- MIDI


@pytest.mark.parametrize("piece", [piece for name, piece in PIECES.items() if any(piece.steps)])
def test_midi_and_back(piece, tmp_path):
    path = write_midi(piece, tmp_path / "sub" / f"{piece.name}.mid", bpm=73)
    assert read_midi(path) == piece
    [track] = mido.MidiFile(path).tracks
    on = [message for message in track if message.type == "note_on" and message.velocity]
    assert len(on) == len(piece.notes()) and mido.tempo2bpm(track[1].tempo) == pytest.approx(73, rel=1e-4)
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # no draft is left
    sounding = set()
    for message in track:  # what is struck again has ended before: players differ on what overlaps
        if message.type == "note_on":
            assert message.note not in sounding
            sounding.add(message.note)
        elif message.type == "note_off":
            sounding.remove(message.note)


def midi_of(*tracks, ticks=96, kind=1) -> bytes:
    import io

    buffer = io.BytesIO()
    made = [mido.MidiTrack(track) for track in tracks]
    mido.MidiFile(type=kind, ticks_per_beat=ticks, tracks=made).save(file=buffer)
    return buffer.getvalue()


def on(pitch, time=0, channel=0, velocity=64):
    return mido.Message("note_on", note=pitch, velocity=velocity, time=time, channel=channel)


def off(pitch, time=0, channel=0):
    return mido.Message("note_off", note=pitch, time=time, channel=channel)


def test_midi_by_hand():
    """Ticks to the nearest 16th (24 here), whatever the tempo; tracks and channels merged, drums left out."""
    tempo = mido.MetaMessage("set_tempo", tempo=1)
    melody = [tempo, on(72, 11), on(72, 26, velocity=0), on(74, 35), off(74, 1)]
    chords = [on(48), on(48, channel=1), off(48, 96), off(48, 24, channel=1), on(36, channel=9), on(50, 24)]
    piece, n_drums = parse_midi(midi_of(melody, chords), "a")
    # 72: ticks 11..37 are 0.46..1.54 steps; 74: 72..73 are 3.0..3.04, one step at least; 50 is never ended
    assert piece.notes() == (Note(0, 72, 2), Note(0, 48, 5), Note(3, 74, 1), Note(6, 50, 1))
    assert n_drums == 1 and len(piece) == 7


BAD = {
    "empty": b"",
    "text": b"no MIDI at all",
    "cut": midi_of([on(60), off(60, 24)])[:-9],
    "header only": midi_of([on(60), off(60, 24)])[:14],
    "wrong byte": midi_of([on(60), off(60, 24)]).replace(b"\x90\x3c", b"\x90\xbc"),
    "no notes": midi_of([mido.MetaMessage("track_name", name="a")]),
    "drums only": midi_of([on(60, channel=9), off(60, 24, channel=9)]),
    "no tracks": midi_of(),
    "in seconds": midi_of([on(60), off(60, 24)]).replace(b"\x00\x60MTrk", b"\xe7\x28MTrk"),
    "endless": midi_of([on(60), off(60, 2**27)]),
    "type 2": midi_of([on(60), off(60, 24)], [on(60), off(60, 24)], kind=2),
    "no time": midi_of([on(60), off(60, 24)]).replace(b"\x00\x60MTrk", b"\x00\x00MTrk"),
}


@pytest.mark.parametrize("name", BAD)
def test_midi_that_cannot_be_used(name, tmp_path):
    path = tmp_path / "a.mid"
    path.write_bytes(BAD[name])
    with toys.refused("path"):
        read_midi(path)


def test_other_refusals_of_midi(tmp_path, monkeypatch):
    path = tmp_path / "a.mid"
    with toys.refused("path", FileNotFoundError):
        read_midi(path)
    for bpm in (0, -1, 2000):
        with toys.refused("bpm"):
            write_midi(PIECES["one note"], path, bpm=bpm)
    monkeypatch.setitem(sys.modules, "mido", None)
    for call in (lambda: write_midi(PIECES["one note"], path), lambda: parse_midi(b"", "a")):
        with toys.refused("mido"):
            call()
    assert not path.exists()


# --- the real data


@functools.cache
def real(name: str):
    [collection] = collect(toys.real("music"), [name])
    return collection


EXPECTED = {
    "Jsb16thSeparated": (382, 92_536),
    "jsb-chorales-16th": (382, 92_536),
    "jsb-chorales-quarter": (382, 23_134),
    "mozart-16th": (69, 81_360),
    "nottingham-16th": (1034, 559_487),
}
"""Pieces and steps, as the README of the data counts them."""


@pytest.mark.data
@pytest.mark.parametrize("name", EXPECTED)
def test_real_pieces_come_back(name):
    pieces = real(name).pieces
    assert (len(pieces), sum(map(len, pieces))) == EXPECTED[name]
    for piece in pieces[:: len(pieces) // 15]:
        ids = TOKENIZER.encode(piece)
        assert TOKENIZER.decode(ids, piece.name, piece.composer) == piece
    check_grammar(ids[:-1])


@pytest.mark.data
def test_real_midi_is_what_others_read_in_it():
    """The steps that were derived from the same MIDI files elsewhere; of every 25th file."""
    there = {piece.name: piece.steps for piece in real("nottingham-16th").pieces}
    with open_place(toys.real("music", "nottingham_midi.zip")) as place:
        files = [each for each in place.members if each.base.endswith(".mid")]
        assert len(files) == len(there) == 1034
        pieces = [parse_midi(place.read(each.name), each.base[:-4])[0] for each in files[::25]]
    assert [piece.name for piece in pieces if piece.steps != there[piece.name]] == []
    assert any(piece.again for piece in pieces)  # MIDI tells what is struck again
    for piece in pieces:
        assert TOKENIZER.decode(TOKENIZER.encode(piece), piece.name) == piece
