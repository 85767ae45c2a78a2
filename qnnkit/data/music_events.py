"""Music on a grid of 16th notes, and the events by which a language model reads and writes it.

A step of a piece becomes, in this order:

- the notes that begin there, from the highest to the lowest: `pitch p`. Before the first of them, and where
  the length changes, `duration d` (in steps) says how long each of the following ones lasts;
- `time t`: so many steps until the next note begins, or the piece ends.

Lengths of more than 16 steps are sums, as in `duration 16`, `duration 4`. A piece stands between `start` and
`end`. So a chorale's first quarter, four voices, is `duration 4`, four pitches, `time 4`: six tokens.

Why so: a duration at the onset (as in REMI, Huang and Yang 2020, arXiv:2002.00212) needs no note-off events,
which Oore et al. 2018 (arXiv:1808.03715) have; so every cut after a `time` leaves a piece by itself, with no
note left hanging: chunks for training and the window of a generation begin there. Time is written as shifts
rather than by bars and positions, for the step form of the data knows no metre. What the field has but this
grid has not (velocity, tempo) needs no tokens. Notes of a chord mostly share their length, which is written
once. Beside listing every sounding pitch at every step (as BachBot and CoCoNet do), chorales take 0.38 of the
tokens, Mozart's sonatas 0.73, the Nottingham tunes 0.25; beside note-on and note-off events 0.89, 0.91 and
0.94.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

from qnnkit import checks, workspace

STEPS_PER_QUARTER = 4
LONGEST = 16
"""Steps of the longest single time or duration: a bar of four quarters."""
N_PITCHES = 128

PAD, START, END = 0, 1, 2
TIME, DURATION, PITCH = 3, 3 + LONGEST, 3 + 2 * LONGEST
"""Tokens of the shortest time, the shortest duration (one step each) and pitch 0."""
SIZE = PITCH + N_PITCHES
FILE = "music_tokenizer.json"

Step = tuple[int, ...]


class Note(NamedTuple):
    """One note: when it begins and how long it lasts, in steps, and its MIDI pitch (60 is the middle C)."""

    start: int
    pitch: int
    duration: int


@dataclass(frozen=True)
class Piece:
    """Music on a grid of 16th notes.

    Voices are merged, as on a piano: two that sing the same pitch are one note. A pitch that sounds in two
    steps one after the other is held, unless it stands in `again`.

    Raises:
        TypeError: A pitch is not a whole number.
        ValueError: A pitch lies outside of 0..127, or `again` does not fit the steps.

    Example:
        >>> piece = Piece("two notes", ((60,), (60, 67), (67,)))
        >>> piece.notes()
        (Note(start=0, pitch=60, duration=2), Note(start=1, pitch=67, duration=2))
        >>> Piece.of_notes("again", piece.notes(), 3).steps == piece.steps
        True
    """

    name: str
    steps: tuple[Step, ...]
    """The MIDI pitches that sound in each 16th, ascending."""
    composer: str = ""
    again: tuple[Step, ...] = ()
    """Of each step, those of its pitches that sounded before and are struck anew; () if there are none."""

    def __post_init__(self) -> None:
        steps = tuple(map(_tidy, self.steps))
        if wrong := [step for step in steps if step and not (step[0] >= 0 and step[-1] < N_PITCHES)]:
            step = "MIDI pitches are needed: 60 is the middle C, 12 an octave."
            raise ValueError(checks.message("steps", "hold pitches of 0..127", wrong[0], step))
        again = tuple(map(_tidy, self.again)) if any(self.again) else ()
        both = (set(now) & set(last) for now, last in zip(steps, ((), *steps), strict=False))
        if again and not (len(again) == len(steps) and all(map(set.issuperset, both, again))):
            rule = "tell, step by step, which pitches of the step before are struck again"
            raise ValueError(checks.message("again", rule, self.name, "Leave it out to hold them all."))
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "again", again)

    def __len__(self) -> int:
        """Its length in steps."""
        return len(self.steps)

    def notes(self) -> tuple[Note, ...]:
        """Every note, in order of beginning, from high to low."""
        sounding: dict[int, int] = {}  # pitch -> when it began
        found = []
        again = self.again or ((),) * len(self.steps)
        for now, (step, struck) in enumerate(
            itertools.chain(zip(self.steps, again, strict=True), [((), ())])
        ):
            for pitch in [each for each in sounding if each not in step or each in struck]:
                start = sounding.pop(pitch)
                found.append(Note(start, pitch, now - start))
            for pitch in step:
                sounding.setdefault(pitch, now)
        return tuple(sorted(found, key=lambda note: (note.start, -note.pitch)))

    @staticmethod
    def of_notes(name: str, notes: Iterable[Note], n_steps: int, composer: str = "") -> Piece:
        """A piece of so many steps from notes; what sounds longer is cut there.

        Where notes of the same pitch overlap, the pitch sounds as long as any of them, and each that begins
        later strikes it again.
        """
        notes = [note for note in notes if 0 <= note.start < n_steps]
        sounding: list[set[int]] = [set() for _ in range(n_steps)]
        for note in notes:
            for step in sounding[note.start : note.start + note.duration]:
                step.add(note.pitch)
        again: list[set[int]] = [set() for _ in range(n_steps)]
        for note in notes:
            if note.start and note.pitch in sounding[note.start - 1]:
                again[note.start].add(note.pitch)
        return Piece(name, tuple(map(tuple, sounding)), composer, tuple(map(tuple, again)))

    def part(self, start: int, stop: int) -> Piece:
        """Its steps from `start` up to but without `stop`; notes that cross an end are cut there."""
        again = ((), *self.again[start + 1 : stop]) if self.again else ()
        return Piece(self.name, self.steps[start:stop], self.composer, again[: len(self.steps[start:stop])])


def _tidy(step: Iterable[int]) -> Step:
    whole = {pitch if type(pitch) is int else _whole(pitch) for pitch in step}
    return tuple(sorted(whole))


def _whole(pitch: object) -> int:
    """A pitch of any library's whole numbers."""
    if isinstance(pitch, Integral) and not isinstance(pitch, bool):
        return int(pitch)
    step = "A step is a list of MIDI pitches, such as [60, 64, 67]."
    raise TypeError(checks.message("steps", "hold whole numbers", pitch, step))


class MusicTokenizer:
    """The events of this module as tokens: 3 marks, 16 times, 16 durations, 128 pitches.

    Every vocabulary is the same, so that a net, its adapters and any data go together.

    Example:
        >>> tokenizer = MusicTokenizer()
        >>> ids = tokenizer.encode(Piece("a", ((60, 64), (60, 64), (60,), ())))
        >>> ", ".join(tokenizer.names[token] for token in ids)
        'start, duration 2, pitch 64, duration 3, pitch 60, time 4, end'
        >>> tokenizer.decode(ids).steps
        ((60, 64), (60, 64), (60,), ())
    """

    pad_token_id, bos_token_id, eos_token_id = PAD, START, END

    def __len__(self) -> int:
        return SIZE

    @property
    def names(self) -> tuple[str, ...]:
        """What each token says."""
        lengths = [f"{what} {n}" for what in ("time", "duration") for n in range(1, LONGEST + 1)]
        return ("pad", "start", "end", *lengths, *(f"pitch {n}" for n in range(N_PITCHES)))

    def encode(self, piece: Piece, *, marks: bool = True) -> list[int]:
        """The tokens of a piece.

        Args:
            piece: Any, an empty one too.
            marks: Whether `start` and `end` stand around it.
        """
        ids, now, last = [START] if marks else [], 0, 0
        for note in piece.notes():
            if note.start > now:
                ids += _lengths(TIME, note.start - now)
                now, last = note.start, 0
            if note.duration != last:
                ids += _lengths(DURATION, note.duration)
                last = note.duration
            ids.append(PITCH + note.pitch)
        ids += _lengths(TIME, len(piece) - now)
        return [*ids, END] if marks else ids

    def decode(self, ids: Iterable[int], name: str = "", composer: str = "") -> Piece:
        """The piece that tokens tell: up to `end`, without padding; notes are cut where time ends.

        Args:
            ids: Tokens, with or without marks; a part of a piece that begins after a `time` will do.
            name: Of the piece.
            composer: Of the piece.

        Raises:
            ValueError: A pitch comes before any duration of its step, or a token is unknown.
        """
        notes, now, duration, summing = [], 0, 0, False
        for token in map(int, ids):
            if token == END:
                break
            if TIME <= token < DURATION:
                now, duration, summing = now + token - TIME + 1, 0, False
            elif DURATION <= token < PITCH:
                duration = (duration if summing else 0) + token - DURATION + 1
                summing = True
            elif PITCH <= token < SIZE and duration:
                notes.append(Note(now, token - PITCH, duration))
                summing = False
            elif token not in (PAD, START):
                rule = "be events of music, with a duration before the pitches of a step"
                step = "Use `qnnkit.tasks.continue_piece`, which writes no others."
                raise ValueError(checks.message("ids", rule, token, step))
        return Piece.of_notes(name, notes, now, composer)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes `music_tokenizer.json`: what each token says."""
        path = workspace.make_folder(Path(folder)) / FILE
        content = {"kind": "qnnkit music events", "steps_per_quarter": STEPS_PER_QUARTER, "names": self.names}
        workspace.write_json(path, content)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> MusicTokenizer:
        """The tokenizer that was written to `folder`.

        Raises:
            FileNotFoundError: None was.
            ValueError: It is of other events than this version's.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            step = "Pass a folder that `save_pretrained` wrote."
            raise FileNotFoundError(checks.message("folder", f"hold {FILE}", str(folder), step))
        try:
            names = json.loads(path.read_text(encoding="utf-8"))["names"]
        except (ValueError, KeyError, TypeError):
            names = None
        if names != list(cls().names):
            step = "Use the version of qnnkit that wrote it."
            raise ValueError(checks.message("folder", "hold this version's music events", str(folder), step))
        return cls()

    def __repr__(self) -> str:
        return f"MusicTokenizer({SIZE} tokens)"


def _lengths(first: int, n: int) -> list[int]:
    """So many steps as tokens of a kind: full bars, then what is left."""
    bars, rest = divmod(n, LONGEST)
    return [first + LONGEST - 1] * bars + ([first + rest - 1] if rest else [])
