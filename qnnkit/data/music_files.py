"""Pieces of music as people have them, MIDI files or JSON of 16ths by composer, and their tokens.

symusic reads and writes MIDI; `music_tokens` and `midi_events` turn a score into tokens and back.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from qnnkit import checks, words
from qnnkit.data import fetch, places
from qnnkit.data.folders import SIDES

JSON, MIDI = (".json", ".json.gz"), (".mid", ".midi")
STEPS_PER_QUARTER, VELOCITY = 4, 79
"""Of JSON of 16ths, which knows no velocity."""
LONGEST = 2**15
"""Quarters; more (8,192 bars) is no music but a damaged file."""
Steps = list[list[Annotated[int | None, Field(ge=-1, le=127)]]]
"""The pitches that sound in each 16th; a voice that rests is -1 or None."""


class Piece(NamedTuple):
    """A piece of music; `side` is the split that its source puts it in, "" where it has none."""

    composer: str
    name: str
    score: Any  # symusic.Score, in ticks
    side: str = ""


def collect(
    root: str | Path | Sequence[str | Path] | None, composers: Sequence[str] | None = None
) -> tuple[list[Piece], list[str]]:
    """Pieces, composer by composer in the order of their names; and sentences on what is not read.

    A composer is a folder of MIDI files (in a folder or archive, the folder next to the file counts; where
    there is none, the archive's or root's own name), or a JSON file, by its name without the suffix.

    Args:
        root: A folder, archive, JSON (.json, .json.gz) or MIDI file, or several of them.
        composers: Which of them, all by default. Only these are read.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: No file of music is there, none of a composer, or none that can be read.
    """
    pieces, left_out = [], []
    files, notes = _listed([root] if isinstance(root, str | Path | None) else root)
    chosen = files if composers is None else [checks.choice("composers", each, files) for each in composers]
    for place, name, composer in [(*file, each) for each in chosen for file in files[each]]:
        try:
            read = _read(place, name, composer)
        except (ValueError, OSError, RuntimeError) as error:
            left_out.append(f"{name} ({words.first_line(error)})")
            continue
        pieces += [piece for piece in read if piece.score.note_num()]
        left_out += [f"{piece.name} (no notes)" for piece in read if not piece.score.note_num()]
    if not pieces:
        step = f"Found there: {places.first(left_out, 3) or 'none'}. Add MIDI files, or JSON of 16ths."
        raise places.refusal("hold music that can be read", str(root), step)
    notes = notes if composers is None else []
    notes += places.left_out({"files or pieces of music": left_out})
    return pieces, notes


def composers_in(root: str | Path) -> tuple[str, ...]:
    """The names of all composers in a folder, archive or file, as `collect` takes them; no piece is read."""
    return tuple(_listed([root])[0])


def _listed(roots: Sequence[Any]) -> tuple[dict[str, list[tuple[places.Place, str]]], list[str]]:
    """Composer -> where each file is and its name there; and sentences on what is no music."""
    files, notes, queue = {}, [], list(roots)
    for root in queue:
        path = fetch.local(root)
        place = places.open_place(path, single=(*MIDI, *JSON))
        zips = (".zip",) if path.is_dir() else ()
        notes += place.notes((*MIDI, *JSON, *zips), "music")
        for member in place.members:
            lower = member.base.lower()
            above = member.name.rpartition("/")[0].rpartition("/")[2] or place.path.absolute().name
            if lower.endswith((*MIDI, *JSON)):
                named = member.base if lower.endswith(JSON) else above
                composer = re.sub(r"\.(json|json\.gz|zip|tar|tar\.gz|tgz)$", "", named, flags=re.IGNORECASE)
                files.setdefault(composer, []).append((place, member.name))
            elif zips and lower.endswith(zips):
                queue.append(path / member.name)
    return files, notes


def _read(place: places.Place, name: str, composer: str) -> list[Piece]:
    """The pieces of a file; ValueError with the reason alone."""
    content = place.read(name)
    if name.lower().endswith(MIDI):
        return [Piece(composer, name.rpartition("/")[2].rpartition(".")[0], of_midi(content))]
    text = places.unpacked(content) if name.lower().endswith(".gz") else content
    try:
        parts = TypeAdapter(dict[str, list]).validate_python(json.loads(text))
        rows = [(key, parts[key], "") for key in sorted(parts, key=places.natural)]
        if parts and set(parts) <= set(SIDES):
            rows = [(f"{SIDES[k]}-{i:03d}", each, SIDES[k]) for k, v, _ in rows for i, each in enumerate(v)]
        if not rows:
            raise ValueError("no pieces")
        steps = TypeAdapter(Steps).validate_python
        return [Piece(composer, title, of_steps(steps(piece)), side) for title, piece, side in rows]
    except ValidationError as error:
        raise ValueError(f"no JSON of 16ths: {error.errors()[0]['msg']}") from None


def of_midi(content: bytes) -> Any:
    """The notes of a MIDI file with their tracks, programs, velocities and tempos: a `symusic.Score`."""
    from symusic import Score

    score: Any = Score.from_midi(content)
    if content[8:10] == b"\0\2" and content[10:12] > b"\0\1":
        raise ValueError("its tracks are pieces of their own, type 2")
    if score.end() > LONGEST * score.tpq:  # also of a file without ticks
        raise ValueError(f"damaged: longer than {LONGEST:,} quarters")
    return score


def of_steps(steps: Sequence[Sequence[int | None]]) -> Any:
    """A score of 16ths, each a list of the MIDI pitches that sound in it; a pitch that stays is one note.

    Voices in unison are notes of their own.

    Example:
        >>> [(note.time, note.duration, note.pitch) for note in of_steps([[60], [60, 64]]).tracks[0].notes]
        [(0, 2, 60), (1, 1, 64)]
    """
    from symusic import Note, Score, Track

    times = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    pitches = np.array([*itertools.chain.from_iterable(steps)], float)  # None becomes NaN
    times, pitches = times[pitches >= 0], pitches[pitches >= 0].astype(int)
    order = np.lexsort((times, pitches))
    cells = pitches[order] * len(steps) + times[order]  # equal where voices are in unison
    voices = np.arange(len(cells)) - np.searchsorted(cells, cells)
    rows = np.stack([pitches[order], voices, times[order]])
    rows = rows[:, np.lexsort(rows[::-1])]  # each voice of each pitch as time goes by
    begins = np.flatnonzero((np.diff(rows, prepend=-2) != [[0], [0], [1]]).any(0))
    notes = np.stack([rows[2, begins], np.diff(begins, append=rows.shape[1]), rows[0, begins]])
    starts, lengths, heard = notes[:, np.lexsort(notes[::-1])].astype(np.int32)
    score: Any = Score(STEPS_PER_QUARTER)
    track: Any = Track()
    loudness = np.full(len(starts), VELOCITY, np.int8)
    track.notes = Note.from_numpy(starts, lengths, heard.astype(np.int8), loudness)
    score.tracks.append(track)
    return score
