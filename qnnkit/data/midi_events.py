"""MIDI as rows of eight tokens, one event each: what SkyTNT's `midi_model` reads and writes.

A row begins with the kind of its event; the event's parameters follow in a fixed order, then padding. Time is
in 16ths of a quarter: `time1` counts quarters since the event before, `time2` is the 16th within a quarter.
The format is that of github.com/SkyTNT/midi-model, versions v1 and v2.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from qnnkit import checks, workspace

_WHEN = ("time1", "time2", "track")
_V1 = {
    "note": (*_WHEN, "duration", "channel", "pitch", "velocity"),
    "patch_change": (*_WHEN, "channel", "patch"),
    "control_change": (*_WHEN, "channel", "controller", "value"),
    "set_tempo": (*_WHEN, "bpm"),
}
_V2 = _V1 | {
    "note": (*_WHEN, "channel", "pitch", "velocity", "duration"),
    "time_signature": (*_WHEN, "nn", "dd"),
    "key_signature": (*_WHEN, "sf", "mi"),
}
EVENTS = {"v1": _V1, "v2": _V2}
"""Version -> kinds of events in the order of their tokens -> their parameters in the order of a row."""
_SIZES = {"time1": 128, "time2": 16, "duration": 2048, "track": 128, "channel": 16, "pitch": 128}
_SIZES |= {"velocity": 128, "patch": 128, "controller": 128, "value": 128}
SIZES = {"v1": _SIZES | {"bpm": 256}, "v2": _SIZES | {"bpm": 384, "nn": 16, "dd": 4, "sf": 15, "mi": 2}}
"""Version -> parameters in the order of their tokens -> how many values each has."""
PAD, BOS, EOS, WIDTH = 0, 1, 2, 8
FILE = "midi_events.json"
DRUMS, GRID, TICKS = 9, 16, 480
"""Channel of drums; times in a quarter; ticks of a quarter in what is decoded."""
STEP = 4
"""Tempos and values of controllers that change by less are left out, as they are for the published models."""
_ORDER = ("time_signature", "key_signature", "set_tempo", "patch_change", "control_change", "note")
"""Of events at one time in one track."""


class _Event(NamedTuple):
    time: int  # in 16ths
    track: int
    order: int  # of its kind, in _ORDER
    values: tuple[int, ...]  # those of its row, but for time and track

    @property
    def kind(self) -> str:
        return _ORDER[self.order]


@dataclass(frozen=True)
class MidiEvents:
    """The tokenizer of SkyTNT's `midi_model`.

    Rows stand one after another, so n events are 8 n tokens, and the next one can be asked of a net as of any
    language model.

    Args:
        version: "v1" has 3,239 tokens; "v2" has 3,406, with time and key signatures.
    """

    version: str = "v2"
    width: ClassVar[int] = WIDTH
    bos: ClassVar[int] = BOS
    pad: ClassVar[int] = PAD

    def __post_init__(self) -> None:
        checks.choice("version", self.version, EVENTS)

    @classmethod
    def of_folder(cls, folder: str | Path) -> MidiEvents | None:
        """The tokenizer that a model's or adapter's folder names; None if it is of another kind."""
        for name in ("config.json", FILE):
            content = workspace.read_json(Path(folder).expanduser() / name)
            if isinstance(content, dict) and content.get("model_type") == "midi_model":
                return cls((content.get("tokenizer") or {}).get("version", "v2"))
        return None

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes which version it is into a folder, of an adapter too."""
        content = {"model_type": "midi_model", "tokenizer": {"version": self.version}}
        workspace.write_json(Path(folder) / FILE, content)

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Kind of event -> its token."""
        return {kind: EOS + 1 + i for i, kind in enumerate(EVENTS[self.version])}

    @cached_property
    def tokens(self) -> dict[str, range]:
        """Parameter -> its tokens, from the value 0 on."""
        first, found = EOS + 1 + len(self.kinds), {}
        for name, size in SIZES[self.version].items():
            found[name] = range(first, first := first + size)
        return found

    @cached_property
    def rows(self) -> dict[int, tuple[range, ...]]:
        """Token of a kind -> the tokens that each of the seven places behind it may have."""
        padding = (range(PAD, PAD + 1),) * WIDTH
        kinds = {self.kinds[kind]: names for kind, names in EVENTS[self.version].items()} | {BOS: (), EOS: ()}
        return {
            kind: (*(self.tokens[name] for name in names), *padding)[: WIDTH - 1]
            for kind, names in kinds.items()
        }

    @cached_property
    def borders(self) -> frozenset[int]:
        """Tokens at which a block may begin: those of kinds, with which rows begin."""
        return frozenset(self.kinds.values())

    @property
    def pitches(self) -> range:
        """Tokens of the pitches, drums' too, from the lowest on."""
        return self.tokens["pitch"]

    def __len__(self) -> int:
        return max(tokens.stop for tokens in self.tokens.values())

    def encode(self, score: Any) -> tuple[list[int], Counter[str]]:
        """The tokens of a `symusic.Score`, between a row of BOS and one of EOS; and what they do not hold.

        Times are rounded to 16ths. A note ends where the next one of its track and pitch begins. What sets
        programs, controllers, tempo and key before the first note stands at time 0. Silences of 128 quarters
        and more are told by repeating the tempo. symusic does not give a file's own channels, so they are
        numbered from 0, and tracks from 1, as for the published models called `tv2o`.

        Returns:
            Tokens, 8 for each event; and what was left out -> how often.
        """
        lost: Counter[str] = Counter()
        rows, beat, bpm = [self._row(BOS)], 0, 120
        for event in _settled(sorted(self._events(score, lost))):
            while event.time // GRID - beat >= _SIZES["time1"]:
                rows.append(self._row(self.kinds["set_tempo"], (_SIZES["time1"] - 1, 0, 0, bpm)))
                beat += _SIZES["time1"] - 1
            when = (event.time // GRID - beat, event.time % GRID, event.track)
            rows.append(self._row(self.kinds[event.kind], (*when, *event.values)))
            beat = event.time // GRID
            bpm = event.values[0] if event.kind == "set_tempo" else bpm
        return [token for row in (*rows, self._row(EOS)) for token in row], +lost

    def decode(self, ids: Sequence[int]) -> Any:
        """The `symusic.Score` of rows of tokens; what is no whole event of the format is passed over."""
        from symusic import ControlChange, KeySignature, Note, Score, Tempo, TimeSignature, Track

        score: Any = Score(TICKS)
        new: Any = Track
        tracks, notes, programs, beat = defaultdict(new), defaultdict(list), Counter(), 0
        kinds = {token: kind for kind, token in self.kinds.items()}
        for row in zip(*[iter(ids)] * WIDTH, strict=False):
            if row[0] not in kinds or not all(map(range.__contains__, self.rows[row[0]], row[1:])):
                continue
            kind = kinds[row[0]]
            of = {
                name: token - self.tokens[name].start
                for name, token in zip(EVENTS[self.version][kind], row[1:], strict=False)
            }
            beat += of["time1"]
            time = (beat * GRID + of["time2"]) * TICKS // GRID
            key = of["track"], of.get("channel", 0), programs[of.get("channel", 0)]
            if kind == "note":
                notes[key].append((time, of["duration"] * TICKS // GRID, of["pitch"], of["velocity"]))
            elif kind == "patch_change":
                programs[of["channel"]] = of["patch"]
            elif kind == "control_change":
                tracks[key].controls.append(ControlChange(time, of["controller"], of["value"]))
            elif kind == "set_tempo":
                score.tempos.append(Tempo(time, float(max(1, of["bpm"]))))
            elif kind == "time_signature":
                score.time_signatures.append(TimeSignature(time, of["nn"] + 1, 2 ** (of["dd"] + 1)))
            else:
                score.key_signatures.append(KeySignature(time, of["sf"] - 7, of["mi"]))
        for number, channel, program in sorted(notes):
            track: Any = tracks[number, channel, program]
            track.program, track.is_drum = program, channel == DRUMS
            for note in _apart(sorted(notes[number, channel, program])):
                track.notes.append(Note(*note))
            score.tracks.append(track)
        return score

    def first_bars(self, ids: Sequence[int], n_bars: int) -> int:
        """How many of the tokens are before the end of the bar `n_bars`, of four quarters each."""
        if len(ids) % WIDTH:  # in the midst of an event
            return len(ids)
        waits = torch.tensor(ids).view(-1, WIDTH)[:, 1] - self.tokens["time1"].start
        after = (waits.clamp(min=0).cumsum(0) >= 4 * n_bars).nonzero()  # marks do not wait
        return WIDTH * int(after[0]) if len(after) else len(ids)

    def is_pitch(self, ids: Tensor) -> Tensor:
        """Which tokens are pitches of notes but drums, in rows of shape (n, length)."""
        before = ids.roll(1, dims=1)  # the channel
        return (
            (ids >= self.pitches.start)
            & (ids < self.pitches.stop)
            & (before != self.tokens["channel"][DRUMS])
        )

    def shifted(self, ids: Tensor, shift: Tensor) -> Tensor:
        """Rows with notes so many semitones, (n, 1), higher, and key signatures with them; drums stay."""
        new = ids + shift * self.is_pitch(ids)
        if "sf" not in self.tokens:
            return new
        is_key = ids.roll(4, dims=1) == self.kinds["key_signature"]
        sharps = ids - self.tokens["sf"][7]
        key = (7 * (7 * sharps + shift)) % 12  # a semitone is seven fifths
        is_minor = ids.roll(-1, dims=1) == self.tokens["mi"][1]
        key = torch.where((key > 6) | (is_minor & (key > 4)), key - 12, key)
        return torch.where(is_key, self.tokens["sf"][7] + key, new)

    def allowed(self, ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor of transformers: -inf where a token cannot go on with its row, or is an end.

        Args:
            ids: Rows so far, the last one maybe in part; of shape (batch, n).
            scores: Logits, of shape (batch, vocabulary).
        """
        place, forbidden = ids.shape[1] % WIDTH, torch.ones_like(scores, dtype=torch.bool)
        if place == 0:
            forbidden[:, [*self.kinds.values()]] = False
        else:
            for i, kind in enumerate(ids[:, -place].tolist()):
                these = self.rows[kind][place - 1]
                forbidden[i, these.start : these.stop] = False
        return scores.masked_fill(forbidden, -math.inf)

    def _row(self, kind: int, values: Iterable[int] = ()) -> list[int]:
        row = [kind, *(place[value] for place, value in zip(self.rows[kind], values, strict=False))]
        return row + [PAD] * (WIDTH - len(row))

    def _events(self, score: Any, lost: Counter[str]) -> Iterator[_Event]:
        """The events of a score, at times of its own; what does not fit is counted in `lost`."""

        def in_16ths(ticks: int) -> int:
            return round(GRID * ticks / score.tpq)

        def event(ticks: int, track: int, kind: str, *values: int) -> _Event:
            return _Event(in_16ths(ticks), track, _ORDER.index(kind), values)

        last, sizes, names = 0, SIZES[self.version], EVENTS[self.version]["note"][3:]
        for tempo in sorted(score.tempos, key=lambda each: each.time):
            bpm = min(int(60e6 / max(1, tempo.mspq)), sizes["bpm"] - 1)
            if abs(bpm - last) < STEP:
                lost[f"tempos that change by less than {STEP}"] += 1
                continue
            last = bpm
            yield event(tempo.time, 0, "set_tempo", bpm)
        for each in score.time_signatures:
            beats, unit = each.numerator - 1, math.log2(each.denominator) - 1
            if "nn" in sizes and beats in range(sizes["nn"]) and unit in range(sizes["dd"]):
                yield event(each.time, 0, "time_signature", beats, int(unit))
            else:
                lost["time signatures"] += 1
        tracks = _numbered(score, lost)
        for number, (channel, first, track) in enumerate(tracks, start=1):
            yield event(first, number, "patch_change", channel, track.program)
            values: Counter[int] = Counter()
            for each in sorted(track.controls, key=lambda each: each.time):
                if abs(each.value - values[each.number]) < STEP:
                    lost[f"control changes by less than {STEP}"] += 1
                    continue
                values[each.number] = each.value
                yield event(each.time, number, "control_change", channel, each.number, each.value)
            notes = _apart(
                [
                    (in_16ths(each.time), max(1, in_16ths(each.duration)), each.pitch, each.velocity)
                    for each in sorted(track.notes, key=lambda each: each.time)
                ]
            )
            for time, length, pitch, velocity in notes:
                of = {"channel": channel, "pitch": pitch, "velocity": velocity}
                of["duration"] = min(length, sizes["duration"] - 1)
                yield _Event(time, number, _ORDER.index("note"), tuple(of[name] for name in names))
                lost[f"ends of notes after {sizes['duration'] - 1:,} 16ths"] += of["duration"] != length
            lost["notes of one time and pitch"] += len(track.notes) - len(notes)
            lost["pitch bends"] += len(track.pitch_bends)
            lost["lyrics"] += len(track.lyrics)
        if "sf" not in sizes:
            lost["key signatures"] += len(score.key_signatures)
            return
        for ticks, number, sharps, is_minor in _keys(score, tracks):
            yield event(ticks, number, "key_signature", sharps + 7, is_minor)


def _numbered(score: Any, lost: Counter[str]) -> list[tuple[int, int, Any]]:
    """(Channel, when its program is set, track) of each track with notes, in the order of channels.

    Drums are on channel 9. Each other track has a channel of its own; where there are more, the one whose
    notes are over, or not begun.
    """
    spans: dict[int, list[tuple[int, int]]] = {channel: [] for channel in range(16)}
    found = []
    for track in (track for track in score.tracks if track.notes):
        begin, end = track.start(), track.end()
        free = [
            channel
            for channel in sorted(spans.keys() - {DRUMS}, key=lambda each: (bool(spans[each]), each))
            if all(end <= start or begin >= stop for start, stop in spans[channel])
        ]
        channel = DRUMS if track.is_drum else next(iter(free), None)
        if channel is None or len(found) + 1 == _SIZES["track"]:
            lost["notes of tracks beyond 16 channels"] += len(track.notes)
            continue
        found.append((channel, begin if spans[channel] else 0, track))
        spans[channel].append((begin, end))
    return sorted(found, key=lambda each: each[0])


def _keys(score: Any, tracks: list[tuple[int, int, Any]]) -> list[tuple[int, int, int, int]]:
    """(Time, track, sharps, whether minor) of each key signature: the score's, or those of its notes' key.

    A score with none but C major, which is what programs write that ask for no key, is looked at: are its
    seven most frequent notes those of a major scale, each track has its key, and drums C major.
    """
    told = [(each.time, 0, each.key, each.tonality) for each in score.key_signatures]
    told = [each for each in told if -7 <= each[2] <= 7 and each[3] in (0, 1)]
    if any(sharps for _, _, sharps, _ in told):
        return told
    count = Counter(
        note.pitch % 12 for channel, _, track in tracks if channel != DRUMS for note in track.notes
    )
    common = count.most_common(7)
    scale = {pitch for pitch, _ in common}
    if sum(n for _, n in common) < 0.7 * count.total():
        return []
    for root in range(12):
        if count and scale == {(root + step) % 12 for step in (0, 2, 4, 5, 7, 9, 11)}:
            sharps = (7 * root + 5) % 12 - 5
            return [
                (0, number, 0 if channel == DRUMS else sharps, 0)
                for number, (channel, _, _) in enumerate(tracks, start=1)
            ]
    return []


def _apart(notes: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """(Time, length, pitch, velocity) of notes in time; each ends where the next of its pitch begins."""
    begins: dict[int, int] = {}
    found = []
    for time, length, pitch, velocity in reversed(notes):
        length, begins[pitch] = min(length, begins.get(pitch, time + length) - time), time
        if length > 0:
            found.append((time, length, pitch, velocity))
    return found[::-1]


def _settled(events: Sequence[_Event]) -> list[_Event]:
    """Events in order; what is set before the first note is at time 0, the last of what is set twice."""
    first = next((event.time for event in events if event.kind == "note"), 0)
    early, others = {}, []
    for event in events:
        if event.time > first or event.kind in ("note", "time_signature"):
            others.append(event)
            continue
        of_channel = event.kind in ("patch_change", "control_change")
        early[event.kind, event.track, event.values[:-1] if of_channel else ()] = event._replace(time=0)
    return sorted([*early.values(), *others], key=lambda event: event[:3])
