"""Pieces of music as people have them: MIDI files in folders and zips, JSON of steps, music21's corpus."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch, places
from qnnkit.data.folders import SIDES
from qnnkit.data.music_events import STEPS_PER_QUARTER, Note, Piece
from qnnkit.data.music_midi import Unreadable, needed, parse_midi
from qnnkit.data.places import refusal
from qnnkit.data.splits import SPLITS

JSON, MIDI = (".json", ".json.gz"), (".mid", ".midi")
CORPUS = "music21:"
SILENT = (None, -1)
"""What the step form has for a voice that rests."""

File = tuple[places.Place | None, str]
"""Where a file of music lies, and its name there; for music21's corpus None, and the composer's name."""


@dataclass
class Collection:
    """The pieces of one composer, in the order of their names."""

    composer: str
    pieces: list[Piece] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    """The split that its source puts each piece in; "" where it has none."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what was left out."""

    def add(self, piece: Piece, side: str = "") -> None:
        self.pieces.append(piece)
        self.sides.append(side)


def collect(
    root: str | Path | Sequence[str | Path] | None, composers: Sequence[str] | None = None
) -> list[Collection]:
    """The pieces of each composer; notes on what is no music stand with the first, if all are read.

    A composer is a folder of MIDI files (in a folder or zip, the folder next to the file counts; where there
    is none, the zip's or root's own name), or a JSON file, by its name without the suffix.

    Args:
        root: A folder, zip, JSON (.json, .json.gz) or MIDI file, or "music21:<composer>" for that part of
            music21's corpus; or several of them.
        composers: Which of them, all by default. Only these are read.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: No music is there, or none of a composer; a JSON is not of the step form; all MIDI files
            of a composer are damaged or without notes; what reads them is not installed.
    """
    with contextlib.ExitStack() as stack:
        found, notes = _listed([root] if isinstance(root, str | Path | None) else root, stack)
        if not found:
            step = "Add MIDI files in a folder for each composer, or a JSON of steps."
            raise refusal("hold MIDI files or JSON of steps", str(root), step)
        chosen = found if composers is None else composers
        if not chosen:
            raise ValueError(checks.message("composers", "name one at least", composers, "None takes all."))
        collections = [_read(name, found[checks.choice("composers", name, found)]) for name in chosen]
    if composers is None:
        collections[0].notes[:0] = notes
    return collections


def composers_in(root: str | Path) -> tuple[str, ...]:
    """The names of all composers in a folder, zip or file, as `collect` takes them; no piece is read.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    with contextlib.ExitStack() as stack:
        return tuple(_listed([root], stack)[0])


def _listed(
    roots: Sequence[str | Path | None], stack: contextlib.ExitStack
) -> tuple[dict[str, list[File]], list[str]]:
    """Where each composer's files lie, and sentences on what is no music; nothing is read."""
    found: dict[str, list[File]] = {}
    notes: list[str] = []
    queue = list(roots)
    for root in queue:
        if str(root).startswith(CORPUS):
            name = str(root).removeprefix(CORPUS)
            found.setdefault(name, []).append((None, name))
            continue
        path = fetch.local(root)
        place = stack.enter_context(places.open_place(path, single=(*MIDI, *JSON)))
        zips = (".zip",) if path.is_dir() else ()
        notes += place.notes((*MIDI, *JSON, *zips), "music")
        for member in place.members:
            lower = member.base.lower()
            if lower.endswith((*MIDI, *JSON)):
                above = member.name.rpartition("/")[0].rpartition("/")[2] or _stem(place.path.absolute().name)
                composer = _stem(member.base) if lower.endswith(JSON) else above
                found.setdefault(composer, []).append((place, member.name))
        queue += [
            path / member.name for member in place.members if zips and member.name.lower().endswith(zips)
        ]
    return found, notes


def _stem(name: str) -> str:
    suffix = next((each for each in (*JSON, *places.ARCHIVES) if name.lower().endswith(each)), "")
    return name[: len(name) - len(suffix)]


def _read(composer: str, files: Sequence[File]) -> Collection:
    """All pieces of a composer; MIDI files that are of no use are left out, with a note."""
    collection = Collection(composer)
    n_midi, left_out, n_drums = 0, [], 0
    for place, name in files:
        if place is None:
            _read_corpus(name, collection)
            continue
        if name.lower().endswith(JSON):
            _read_json(place, name, collection)
            continue
        n_midi += 1
        base = name.rpartition("/")[2]
        try:
            piece, drums = parse_midi(place.read(name), base.rpartition(".")[0], composer)
        except (Unreadable, OSError) as error:
            left_out.append(f"{base} ({error})")
            continue
        except ValueError as error:
            if str(error).startswith("Argument"):  # mido is missing
                raise
            left_out.append(f"{base} (damaged: {error})")
            continue
        n_drums += bool(drums)
        collection.add(piece)
    if not collection.pieces:
        where = ", ".join(dict.fromkeys(str(place and place.path) for place, _ in files))
        step = f"None of {n_midi} can be used: {places.first(left_out, 3)}. Export them anew."
        raise refusal(f"hold a readable MIDI file of {composer}", where, step)
    if left_out:
        left = f"Left out {len(left_out):,} of {n_midi:,} MIDI files of {composer}"
        collection.notes.append(f"{left}: {places.first(left_out, 3)}.")
    if n_drums:
        collection.notes.append(f"Percussion was left out of {n_drums:,} MIDI files of {composer}.")
    return collection


def _read_json(place: places.Place, name: str, collection: Collection) -> None:
    """Adds the pieces of a JSON: {split: [piece, ...]} or {name: piece}, a piece being a list of steps."""
    try:
        content = place.read(name)
        rows = list(_rows(json.loads(places.unpacked(content) if name.lower().endswith(".gz") else content)))
        pieces = [(_piece(title, steps, collection.composer), side) for title, steps, side in rows]
        full = [(piece, side) for piece, side in pieces if any(piece.steps)]
        if not full:
            raise ValueError("no piece has a note")
    except (OSError, ValueError, RecursionError) as error:
        rule = (
            "hold JSON of steps: {split: [piece, ...]} or {name: piece}, a piece a list of lists of pitches"
        )
        step = (
            f"There, {str(error).partition(chr(10))[0].rstrip('.')}. Mend it, or leave it out by `composers`."
        )
        raise refusal(rule, str(place.path / name), step) from None
    for piece, side in full:
        collection.add(piece, side)
    if len(full) < len(pieces):
        n_empty = len(pieces) - len(full)
        collection.notes.append(f"Left out {n_empty:,} pieces of {collection.composer} without a note.")


def _rows(content: Any) -> Iterator[tuple[str, Any, str]]:
    """(Title, piece, split or "") of all that a JSON holds; raises ValueError with the reason alone."""
    if not (isinstance(content, dict) and content):
        raise ValueError(f"all is {'an empty' if content == {} else 'one'} {type(content).__name__}")
    own = {SIDES[key] for key in content if key in SIDES}
    if not own:
        yield from ((key, content[key], "") for key in sorted(content, key=places.natural))
        return
    if others := sorted(set(content) - set(SIDES)):
        raise ValueError(f"{places.first(others, 3)} stands beside splits")
    if missing := {*SPLITS} - own:
        raise ValueError(f"the split {sorted(missing)[0]} is missing")
    for key in sorted(content):
        if not isinstance(content[key], list):
            raise ValueError(f"{key} is no list of pieces")
        for number, piece in enumerate(content[key]):
            yield f"{SIDES[key]}-{number:03d}", piece, SIDES[key]


def _piece(title: str, steps: Any, composer: str) -> Piece:
    """A piece from lists of pitches; JSB's own file has some as 62.0."""
    try:
        kept = [[_pitch(each) for each in step if each not in SILENT] for step in steps]
        if isinstance(steps, list) and all(isinstance(step, list) for step in steps):
            return Piece(title, tuple(map(tuple, kept)), composer)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{title} is no list of steps with pitches of 0..127")


def _pitch(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _read_corpus(name: str, collection: Collection) -> None:
    """Adds what music21's corpus has of a composer; grace notes and chord symbols are left out."""
    corpus = needed("music21", "read its corpus").corpus
    paths = corpus.getComposer(name)
    if not paths:
        step = "`music21.corpus.getCorePaths()` lists what there is; a name is such as bach."
        raise refusal("name a composer of music21's corpus", CORPUS + name, step)
    for path in paths:
        notes = []
        for element in corpus.parse(path).stripTies().flatten().notes:
            if element.duration.isGrace or "ChordSymbol" in element.classes:
                continue
            start = round(float(element.offset) * STEPS_PER_QUARTER)
            stop = round(float(element.offset + element.duration.quarterLength) * STEPS_PER_QUARTER)
            notes += [Note(start, pitch.midi, max(1, stop - start)) for pitch in element.pitches]
        if notes:
            n_steps = max(note.start + note.duration for note in notes)
            collection.add(Piece.of_notes(Path(path).stem, notes, n_steps, collection.composer))
