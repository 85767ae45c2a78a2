"""MIDI as rows of eight tokens, one event per row: the format of SkyTNT's `midi_model`.

A row starts with the kind of its event; the event's parameters follow in a fixed order, then padding. Time is
in 16ths of a quarter: `time1` counts quarters since the previous event, `time2` is the 16th within a quarter.
The format is that of github.com/SkyTNT/midi-model, versions v1 and v2.

Between a score and its rows, an event is a dictionary: its `kind`, its `time` in 16ths of a quarter from the
start, and a value for each parameter that `EVENTS` lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit import checks, workspace

_V1 = {
    "note": ("duration", "channel", "pitch", "velocity"),
    "patch_change": ("channel", "patch"),
    "control_change": ("channel", "controller", "value"),
    "set_tempo": ("bpm",),
}
_V2 = _V1 | {
    "note": ("channel", "pitch", "velocity", "duration"),
    "time_signature": ("nn", "dd"),
    "key_signature": ("sf", "mi"),
}
EVENTS = {"v1": _V1, "v2": _V2}
"""Version -> kind of event, in the order of the tokens -> parameters, in the order of a row.
In each row, `time1`, `time2` and `track` come before these parameters."""
PAD, BOS, EOS, WIDTH = 0, 1, 2, 8
_MARKS = {"pad": (PAD,), "mark": (BOS, EOS)}
_SHARED = {"time1": range(128), "time2": range(16), "duration": range(2048), "track": range(128)}
_SHARED |= {"channel": range(16), "pitch": range(128), "velocity": range(128), "patch": range(128)}
_SHARED |= {"controller": range(128), "value": range(128)}
_SIGNS = {"nn": range(1, 17), "dd": (2, 4, 8, 16), "sf": range(-7, 8), "mi": range(2)}
VALUES: dict[str, dict[str, Sequence[Any]]] = {
    "v1": {**_MARKS, "kind": (*_V1,), **_SHARED, "bpm": (1, *range(1, 256))},
    "v2": {**_MARKS, "kind": (*_V2,), **_SHARED, "bpm": (1, *range(1, 384)), **_SIGNS},
}
"""Version -> parameter, in the order of the tokens -> values of these tokens, in order."""
SYMUSIC = {
    "time_signature": ("time_signatures", "TimeSignature", {"nn": "numerator", "dd": "denominator"}),
    "key_signature": ("key_signatures", "KeySignature", {"sf": "key", "mi": "tonality"}),
    "set_tempo": ("tempos", "Tempo", {"bpm": "qpm"}),
    "patch_change": ("", "", {}),
    "control_change": ("controls", "ControlChange", {"controller": "number", "value": "value"}),
    "note": ("notes", "Note", {"duration": "duration", "pitch": "pitch", "velocity": "velocity"}),
}
"""Kind of event, in the order of simultaneous events of a track -> list and class of symusic, and the names
that it gives to the parameters."""
FILE = "midi_events.json"
DRUMS, GRID, TICKS = 9, 16, 480
"""Channel of drums; time steps per quarter; ticks per quarter in decoded scores."""
STEP = 4
"""Smallest change of a tempo or controller that is written, as for the published models."""
_SCALES = {frozenset((7 * key + i) % 12 for i in (0, 2, 4, 5, 7, 9, 11)): key for key in range(-5, 7)}
"""Pitches of a major scale, C = 0 -> number of sharps; flats are negative."""

Event = dict[str, Any]


@dataclass
class MidiEvents:
    """The tokenizer of SkyTNT's `midi_model`.

    Rows are concatenated: n events are 8 n tokens, and a net predicts the next token like any language model.

    Args:
        version: "v1" has 3,239 tokens; "v2" has 3,406, with time and key signatures.
    """

    version: str = "v2"
    width, bos, pad = WIDTH, BOS, PAD  # the same in both versions

    def __post_init__(self) -> None:
        checks.choice("version", self.version, EVENTS)
        self.values, self.tokens, first = VALUES[self.version], {}, 0
        """Parameter -> its values; parameter -> tokens of these values."""
        for name, values in self.values.items():
            self.tokens[name] = range(first, first := first + len(values))
        self.rows = {}
        """Token of a kind -> parameters at the eight positions of its row."""
        for token, names in zip(self.tokens["kind"], EVENTS[self.version].values(), strict=True):
            self.rows[token] = ("kind", "time1", "time2", "track", *names, *["pad"] * WIDTH)[:WIDTH]
        self.pitches = self.tokens["pitch"]
        """Tokens of the pitches, lowest first; drums share them."""

    @classmethod
    def of_folder(cls, folder: str | Path) -> MidiEvents | None:
        """Returns the tokenizer named in the folder of a model or adapter; None if it is of another kind."""
        for name in ("config.json", FILE):
            content = workspace.read_json(Path(folder).expanduser() / name)
            if isinstance(content, dict) and content.get("model_type") == "midi_model":
                return cls((content.get("tokenizer") or {}).get("version", "v2"))
        return None

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the version to a folder, also to that of an adapter."""
        content = {"model_type": "midi_model", "tokenizer": {"version": self.version}}
        workspace.write_json(Path(folder) / FILE, content)

    def __len__(self) -> int:
        return sum(map(len, self.values.values()))

    def encode(self, score: Any) -> tuple[list[int], Counter[str]]:
        """Returns the tokens of a `symusic.Score`, between a row of BOS and one of EOS, and what they omit.

        Times are rounded to 16ths of a quarter. A note ends when the next one of its track and pitch begins.
        Programs, controllers, tempo and key set before the first note move to time 0. A silence of 128
        quarters or more is written by repeating the tempo. symusic does not report a file's channels, so they
        are numbered from 0, and tracks from 1, as for the published models called `tv2o`.

        Returns:
            Tokens, 8 for each event; and {what was left out: how often}.
        """
        lost: Counter[str] = Counter()
        events = [each for each in _events(score, self.values, lost) if self._holds(each, lost)]
        events.sort(key=lambda each: (*_place(each), self._row(each, 0)))
        ids, beat, bpm, most = [BOS, *[PAD] * (WIDTH - 1)], 0, 120, self.values["time1"][-1]
        for event in _settled(events):
            while (wait := event["time"] // GRID - beat) > most:
                ids += self._row({"kind": "set_tempo", "time": 0, "track": 0, "bpm": bpm}, most)
                beat += most
            ids += self._row(event, wait)
            beat, bpm = beat + wait, event.get("bpm", bpm)
        return [*ids, EOS, *[PAD] * (WIDTH - 1)], +lost

    def decode(self, ids: Sequence[int]) -> Any:
        """Returns rows of tokens as a `symusic.Score`; rows that are not valid events are skipped."""
        import symusic

        score: Any = symusic.Score(GRID)
        tracks, programs = defaultdict(list), Counter()
        for event in self._read(ids):
            channel = event.get("channel", -1)
            if event["kind"] == "patch_change":
                programs[channel] = event["patch"]
            else:
                tracks[event["track"], channel, programs[channel]].append(event)
        for (_, channel, program), events in sorted(tracks.items(), key=itemgetter(0)):
            of: Any = symusic.Track("", program, channel == DRUMS) if channel >= 0 else score
            events.sort(key=lambda event: [event.get(name, -1) for name in ("time", *SYMUSIC["note"][2])])
            for event in _apart(events):
                field, name, names = SYMUSIC[event["kind"]]
                getattr(of, field).append(getattr(symusic, name)(event["time"], *(event[n] for n in names)))
            if channel >= 0 and of.notes:
                score.tracks.append(of)
        return score.resample(TICKS)

    def is_pitch(self, ids: Tensor) -> Tensor:
        """Returns which tokens are pitches, except drums', in rows of shape (n, length)."""
        pitches, is_drum = self.pitches, ids.roll(1, dims=1) == self.tokens["channel"][DRUMS]
        return (ids >= pitches.start) & (ids < pitches.stop) & ~is_drum

    def shifted(self, ids: Tensor, shift: Tensor) -> Tensor:
        """Transposes notes and key signatures up by `shift` semitones, (n, 1); drums do not change."""
        new = ids + shift * self.is_pitch(ids)
        if "sf" not in self.tokens:
            return new
        is_key = ids.roll(4, dims=1) == self.tokens["kind"][-1]
        sharps = ids - self.tokens["sf"][7]
        key = (7 * (7 * sharps + shift)) % 12  # a semitone is seven fifths
        is_minor = ids.roll(-1, dims=1) == self.tokens["mi"][1]
        key = torch.where((key > 6) | (is_minor & (key > 4)), key - 12, key)
        return torch.where(is_key, self.tokens["sf"][7] + key, new)

    def allowed(self, ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor of transformers: -inf for tokens that do not fit the row, and for the end.

        Args:
            ids: Rows so far, the last one possibly incomplete; of shape (batch, n).
            scores: Logits, of shape (batch, vocabulary).
        """
        place, mask = ids.shape[1] % WIDTH, torch.full_like(scores, -torch.inf)
        for row, begin in zip(mask, ids[:, -place].tolist(), strict=True):
            tokens = self.tokens[self.rows.get(begin, ("pad",) * WIDTH)[place] if place else "kind"]
            row[tokens.start : tokens.stop] = 0
        return scores + mask

    def _holds(self, event: Event, lost: Counter[str]) -> bool:
        """Returns whether a row can hold the event; if not, counts it in `lost`."""
        names = ("kind", "track", *EVENTS[self.version].get(event["kind"], ()))
        holds = all(event[name] in self.values[name] for name in names)
        lost[event["kind"].replace("_", " ") + "s"] += not holds
        return holds

    def _row(self, event: Event, wait: int) -> list[int]:
        """Returns the tokens of an event that is `wait` quarters after the previous one."""
        event = event | {"time1": wait, "time2": event["time"] % GRID, "pad": PAD}
        kind = self.tokens["kind"][self.values["kind"].index(event["kind"])]
        return [self.tokens[name][self.values[name].index(event[name])] for name in self.rows[kind]]

    def _read(self, ids: Sequence[int]) -> Iterator[Event]:
        """Yields the events of rows of tokens."""
        beat = 0
        for row in zip(*[iter(ids)] * WIDTH, strict=False):
            places = [*zip(self.rows.get(row[0], ()), row, strict=False)]
            if places and all(token in self.tokens[name] for name, token in places):
                event = {name: self.values[name][self.tokens[name].index(token)] for name, token in places}
                beat += event["time1"]
                yield event | {"time": beat * GRID + event["time2"]}


def _place(event: Event) -> tuple[int, int, int]:
    return event["time"], event["track"], [*SYMUSIC].index(event["kind"])


def _events(score: Any, values: dict[str, Sequence[Any]], lost: Counter[str]) -> Iterator[Event]:
    """Yields the events of a score, whether or not a row can hold them.

    Args:
        score: A `symusic.Score`.
        values: Values of each parameter; tempos and durations are limited to the largest.
        lost: Counts what is left out.
    """

    def in_16ths(ticks: int) -> int:
        return round(GRID * ticks / score.tpq)

    def read(kind: str, of: Any, track: int = 0, **where: int) -> list[Event]:
        field, _, names = SYMUSIC[kind]
        return [
            {"kind": kind, "time": in_16ths(each.time), "track": track, **where}
            | {name: getattr(each, attribute) for name, attribute in names.items()}
            for each in sorted(getattr(of, field), key=lambda each: each.time)
        ]

    tracks = _channels(score, lost)
    tempos, keys = read("set_tempo", score), read("key_signature", score)
    for event in tempos:
        lost[f"tempos above {values['bpm'][-1]} a minute"] += event["bpm"] >= values["bpm"][-1] + 1
        event["bpm"] = int(min(event["bpm"], values["bpm"][-1]))
    if "sf" in values and not any(event["sf"] for event in keys):
        keys = _keys(tracks)
    yield from (*_changes("bpm", tempos, lost), *read("time_signature", score), *keys)
    for number, (channel, first, track) in enumerate(tracks, start=1):
        where = {"track": number, "channel": channel}
        yield {"kind": "patch_change", "time": in_16ths(first), "patch": track.program, **where}
        yield from _changes("value", read("control_change", track, **where), lost)
        notes = read("note", track, **where)
        for event in notes:
            event["duration"] = max(1, in_16ths(event["duration"]))
        most = values["duration"][-1]
        for event in (apart := _apart(notes)):
            lost[f"ends of notes after {most:,} 16ths"] += event["duration"] > most
            yield event | {"duration": min(event["duration"], most)}
        lost["notes of one time and pitch"] += len(notes) - len(apart)
        lost.update({"pitch bends": len(track.pitch_bends), "lyrics": len(track.lyrics)})


def _channels(score: Any, lost: Counter[str]) -> list[tuple[int, int, Any]]:
    """Returns (channel, time at which its program is set, track) of each track with notes, by channel.

    Drums are on channel 9. Other tracks have a channel each; if there are too many, tracks whose notes do not
    overlap in time share one.
    """
    spans: dict[int, list[tuple[int, int]]] = {channel: [] for channel in range(16)}
    channels = []
    for track in (track for track in score.tracks if track.notes):
        begin, end = track.start(), track.end()
        melodic = (number for number in spans if number != DRUMS)
        free = [number for number in melodic if all(end <= a or b <= begin for a, b in spans[number])]
        channel = DRUMS if track.is_drum else min(free, key=lambda number: bool(spans[number]), default=None)
        if channel is None:
            lost["notes of tracks beyond 16 channels"] += len(track.notes)
            continue
        channels.append((channel, begin if spans[channel] else 0, track))
        spans[channel].append((begin, end))
    return sorted(channels, key=itemgetter(0))


def _keys(tracks: list[tuple[int, int, Any]]) -> list[Event]:
    """Returns a key signature for each track, guessed from the notes of a score that names no key.

    A score in C major counts as one that names none, because programs write C by default. If the seven most
    frequent notes form a major scale, each track gets its key, and drums get C major.
    """
    count = Counter(note.pitch % 12 for _, _, track in tracks if not track.is_drum for note in track.notes)
    common = dict(count.most_common(7))
    key = _SCALES.get(frozenset(common))
    if key is None or sum(common.values()) < 0.7 * count.total():
        return []
    signature = {"kind": "key_signature", "time": 0, "mi": 0}
    keys = (0 if channel == DRUMS else key for channel, _, _ in tracks)
    return [signature | {"track": number, "sf": each} for number, each in enumerate(keys, start=1)]


def _changes(name: str, events: list[Event], lost: Counter[str]) -> Iterator[Event]:
    """Yields events that change the tempo or their controller by `STEP` or more since the last one."""
    last: Counter[Any] = Counter()
    for event in events:
        of = event.get("controller")
        if abs(event[name] - last[of]) < STEP:
            lost[f"{'tempo' if of is None else 'control'} changes by less than {STEP}"] += 1
        else:
            last[of] = event[name]
            yield event


def _apart(events: list[Event]) -> list[Event]:
    """Ends each note when the next of its pitch begins, and drops notes that then have no duration."""
    begins: dict[int, int] = {}
    for event in (each for each in reversed(events) if "pitch" in each):
        room = begins.get(event["pitch"], torch.inf) - event["time"]
        event["duration"], begins[event["pitch"]] = min(event["duration"], room), event["time"]
    return [event for event in events if event.get("duration") != 0]


def _settled(events: list[Event]) -> list[Event]:
    """Moves what is set before the first note to time 0, keeps the last of repeated settings, and sorts."""
    first = next((each["time"] for each in events if each["kind"] == "note"), 0)
    settled: dict[Any, Event] = {}
    for i, event in enumerate(events):
        if event["time"] > first or event["kind"] in ("note", "time_signature"):
            settled[i] = event
        else:
            settled[event["kind"], event["track"], event.get("controller")] = event | {"time": 0}
    return sorted(settled.values(), key=_place)
