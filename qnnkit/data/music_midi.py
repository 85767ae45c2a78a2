"""MIDI files to pieces on the 16th grid, and back."""

from __future__ import annotations

import importlib
import io
from collections import defaultdict
from pathlib import Path
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
    mido = needed("mido", "read and write MIDI")
    try:
        file = mido.MidiFile(file=io.BytesIO(data))
        found, n_drums, end = _notes(file)
    except Exception as error:  # mido has another error for each kind of damage
        raise Unreadable(f"damaged: {str(error).partition(chr(10))[0] or 'cut short'}") from None
    ticks = file.ticks_per_beat / STEPS_PER_QUARTER
    if ticks <= 0:
        raise Unreadable("its time is in seconds (SMPTE), not in quarters")
    if file.type == 2 and len(file.tracks) > 1:
        raise Unreadable("its tracks are pieces of their own (type 2)")
    if end > MAX_STEPS * ticks:
        raise Unreadable(f"damaged: {end / ticks:,.0f} steps long")
    if not found:
        raise Unreadable("no notes but percussion" if n_drums else "no notes")
    notes = []
    for tick, pitch, stop in sorted(found):
        start = round(tick / ticks)
        notes.append(Note(start, pitch, max(1, round(stop / ticks) - start)))
    n_steps = max(round(end / ticks), *(note.start + note.duration for note in notes))
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
    mido = needed("mido", "read and write MIDI")
    ticks = TICKS // STEPS_PER_QUARTER
    events = []  # (tick, whether it begins, pitch): what ends comes before what begins
    for note in piece.notes():
        events += [(note.start * ticks, True, note.pitch)]
        events += [((note.start + note.duration) * ticks, False, note.pitch)]
    name = piece.name.encode("latin-1", "replace").decode("latin-1")
    track = mido.MidiTrack()
    track.append(mido.MetaMessage("track_name", name=name))
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


def _notes(file: Any) -> tuple[list[tuple[int, int, int]], int, int]:
    """(Start, pitch, end) of each note in ticks; how many of percussion there are; where the file ends.

    Notes that nothing ends last as long as their track.
    """
    found, n_drums, end = [], 0, 0
    for track in file.tracks:
        now, sounding = 0, defaultdict(list)  # (channel, pitch) -> when those that still sound began
        for message in track:
            now += message.time
            begins = message.type == "note_on" and message.velocity
            if begins and message.channel == DRUMS:
                n_drums += 1
            elif begins:
                sounding[message.channel, message.note].append(now)
            elif message.type in ("note_on", "note_off") and sounding[message.channel, message.note]:
                found.append((sounding[message.channel, message.note].pop(0), message.note, now))
        found += [(start, pitch, now) for (_, pitch), starts in sounding.items() for start in starts]
        end = max(end, now)
    return found, n_drums, end


def needed(module: str, why: str) -> Any:
    """A module of the extra `music`, which is installed for what `why` says."""
    try:
        return importlib.import_module(module)
    except ImportError:
        step = "Run: pip install 'qnnkit[music]'."
        raise ValueError(checks.message(module, f"be installed to {why}", "missing", step)) from None
