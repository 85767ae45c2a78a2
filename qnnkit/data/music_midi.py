"""MIDI files to pieces on the 16th grid, and back."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from qnnkit import checks, workspace
from qnnkit.data.music_events import STEPS_PER_QUARTER, Note, Piece

DRUMS = 9
"""The channel of percussion, counted from 0: its numbers are instruments, not pitches."""
MAX_STEPS = 2**17
"""Longer than this (8,192 bars) is no music but a damaged file."""
TICKS = 480
"""Of a quarter, in what is written."""


class Unreadable(ValueError):
    """A MIDI file that is damaged, or has no notes; its message says which, in a few words."""


def read_midi(path: str | Path) -> Piece:
    """The notes of a MIDI file on the 16th grid, whatever its tempo.

    Onsets and ends go to the nearest 16th, with one step at least; all tracks and channels are merged, but
    for percussion (channel 10), which is left out. The piece is as long as its longest track.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: The file is damaged, or has no notes; or mido is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_midi(Piece("a", ((60,), (60, 64), ())), Path(folder, "a.mid"))
        ...     read_midi(path).steps
        ((60,), (60, 64), ())
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(checks.message("path", "be an existing MIDI file", str(path), "Check it."))
    try:
        return parse_midi(path.read_bytes(), path.stem)[0]
    except Unreadable as error:
        step = f"This one is not ({error}): leave it out, or export it anew."
        raise ValueError(checks.message("path", "be a whole MIDI file with notes", str(path), step)) from None


def parse_midi(data: bytes, name: str, composer: str = "") -> tuple[Piece, int]:
    """What `read_midi` gives, from a file's bytes; and how many notes of percussion were left out.

    Raises:
        Unreadable: It is damaged, or has no notes.
        ValueError: mido is not installed.
    """
    mido = _mido()
    try:
        file = mido.MidiFile(file=io.BytesIO(data))
        if file.ticks_per_beat <= 0:
            raise Unreadable("its time is told in seconds (SMPTE), not in quarters")
        if file.type == 2 and len(file.tracks) > 1:
            raise Unreadable("its tracks are pieces of their own (type 2)")
        found, n_drums, end = _notes(file)
    except Unreadable:
        raise
    except Exception as error:  # mido has another error for each kind of damage
        told = str(error).partition("\n")[0] or "cut short"
        raise Unreadable(f"damaged: {told}") from None
    if end > MAX_STEPS * _ticks(file):
        raise Unreadable(f"damaged: {end / _ticks(file):,.0f} steps long")
    if not found:
        raise Unreadable("no notes but percussion" if n_drums else "no notes")

    def step(tick: int) -> int:
        return round(tick / _ticks(file))

    notes = [
        Note(step(start), pitch, max(1, step(stop) - step(start))) for start, pitch, stop in sorted(found)
    ]
    n_steps = max(step(end), *(note.start + note.duration for note in notes))
    return Piece.of_notes(name, notes, n_steps, composer), n_drums


def write_midi(piece: Piece, path: str | Path, *, bpm: float = 100.0) -> Path:
    """Writes a piece as a MIDI file of one piano track; what is written reads back equal.

    Args:
        piece: Any, an empty one too.
        path: The file; what is there is replaced, whole or not at all.
        bpm: Quarters a minute, 4 to 1,000.

    Raises:
        ValueError: `bpm` is not such a number; or mido is not installed.
        OSError: The file cannot be written.
    """
    if not 4 <= bpm <= 1000:
        raise ValueError(checks.message("bpm", "lie in 4..1000", bpm, "Use 100 quarters a minute."))
    mido = _mido()
    ticks = TICKS // STEPS_PER_QUARTER
    events = []  # (tick, whether it begins, pitch): what ends comes before what begins
    for note in piece.notes():
        events += [(note.start * ticks, True, note.pitch)]
        events += [((note.start + note.duration) * ticks, False, note.pitch)]
    track = mido.MidiTrack()
    track.append(
        mido.MetaMessage("track_name", name=piece.name.encode("latin-1", "replace").decode("latin-1"))
    )
    track.append(mido.MetaMessage("set_tempo", tempo=round(60e6 / bpm)))
    track.append(mido.Message("program_change", program=0))
    now = 0
    for tick, begins, pitch in sorted(events):
        kind, velocity = ("note_on", 80) if begins else ("note_off", 0)
        track.append(mido.Message(kind, note=pitch, velocity=velocity, time=tick - now))
        now = tick
    track.append(mido.MetaMessage("end_of_track", time=len(piece) * ticks - now))
    buffer = io.BytesIO()
    mido.MidiFile(type=0, ticks_per_beat=TICKS, tracks=[track]).save(file=buffer)
    path = Path(path).expanduser()
    workspace.make_folder(path.parent)
    workspace.write_bytes(path, buffer.getvalue())
    return path


def _ticks(file: Any) -> float:
    """Of a step."""
    return file.ticks_per_beat / STEPS_PER_QUARTER


def _notes(file: Any) -> tuple[list[tuple[int, int, int]], int, int]:
    """(Start, pitch, end) of each note in ticks; how many of percussion there are; where the file ends."""
    found, n_drums, end = [], 0, 0
    for track in file.tracks:
        now, open_notes = 0, defaultdict(list)  # (channel, pitch) -> when those that still sound began
        for message in track:
            now += message.time
            if message.type == "note_on" and message.velocity:
                if message.channel == DRUMS:
                    n_drums += 1
                else:
                    open_notes[message.channel, message.note].append(now)
            elif message.type in ("note_on", "note_off") and open_notes[message.channel, message.note]:
                found.append((open_notes[message.channel, message.note].pop(0), message.note, now))
        found += _unended(open_notes, now)
        end = max(end, now)
    return found, n_drums, end


def _unended(open_notes: dict[tuple[int, int], list[int]], now: int) -> Iterable[tuple[int, int, int]]:
    """Notes that nothing ends last as long as their track."""
    for (_, pitch), starts in open_notes.items():
        for start in starts:
            yield start, pitch, now


def _mido() -> ModuleType:
    try:
        import mido
    except ImportError:
        rule, step = "be installed to read and write MIDI", "Run: pip install 'qnnkit[music]'"
        raise ValueError(checks.message("mido", rule, "missing", step)) from None
    return mido
