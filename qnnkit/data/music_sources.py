"""Pieces of music as people have them: MIDI files in folders and zips, JSON of steps, music21's corpus."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch, places
from qnnkit.data.music_events import STEPS_PER_QUARTER, Note, Piece
from qnnkit.data.music_midi import Unreadable, parse_midi

JSON, MIDI = (".json", ".json.gz"), (".mid", ".midi")
SIDES = {"train": "train", "valid": "validation", "validation": "validation", "test": "test"}
"""What a JSON calls its own splits."""
CORPUS = "music21:"
SILENT = (None, -1)
"""What the step form has for a voice that rests."""


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
    root: str | Path | Sequence[str | Path], composers: Sequence[str] | Mapping[str, str] | None = None
) -> list[Collection]:
    """The pieces of each composer.

    A composer is a folder of MIDI files (in a folder or zip, the folder next to the file counts; where there
    is none, the zip's or root's own name), or a JSON file, by its name without the suffix.

    Args:
        root: A folder, zip, JSON (.json, .json.gz) or MIDI file, or "music21:<composer>" for that part of
            music21's corpus; or several of them.
        composers: Which of them, all by default; as a mapping, what each is called here -> its name there,
            such as {"bach": "jsb-chorales-16th"}. Only these are read.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: No music is there, or none of a composer; a JSON is not of the step form; all MIDI files
            of a composer are damaged or without notes; what reads them is not installed.
    """
    roots = [root] if isinstance(root, str | Path) else list(root)
    found: dict[str, list[_File]] = {}
    for each in roots:
        for name, files in _listed(each).items():
            found.setdefault(name, []).extend(files)
    if not found:
        step = "Add MIDI files in a folder for each composer, or a JSON of steps."
        raise ValueError(checks.message("root", "hold MIDI files or JSON of steps", str(root), step))
    if composers is None:
        chosen = {name: name for name in found}
    else:
        chosen = dict(composers) if isinstance(composers, Mapping) else {name: name for name in composers}
    for there in chosen.values():
        checks.choice("composers", there, found)
    if not chosen:
        raise ValueError(checks.message("composers", "name one at least", composers, "None takes them all."))
    return [_read(composer, found[there]) for composer, there in chosen.items()]


def composers_in(root: str | Path) -> tuple[str, ...]:
    """The names of all composers in a folder, zip or file, as `collect` takes them; no piece is read.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    return tuple(_listed(root))


@dataclass(frozen=True)
class _File:
    """A file that holds music, not read yet."""

    place: Path
    """The folder or archive it is in."""
    name: str
    """Its name there; for music21's corpus, the composer."""
    is_corpus: bool = False


def _listed(root: str | Path) -> dict[str, list[_File]]:
    """Composer -> files, without reading them."""
    if str(root).startswith(CORPUS):
        name = str(root).removeprefix(CORPUS)
        return {name: [_File(Path(), name, is_corpus=True)]}
    path = fetch.local(root)
    if path.is_file() and path.name.lower().endswith(JSON):
        return {_stem(path.name): [_File(path.parent, path.name)]}
    if path.is_file() and path.name.lower().endswith(MIDI):
        return {path.absolute().parent.name: [_File(path.parent, path.name)]}
    if path.is_file() and not path.name.lower().endswith(places.ARCHIVES):
        rule = f"be a file of music ({', '.join((*MIDI, *JSON))}), or a folder or archive of such"
        raise ValueError(checks.message("root", rule, str(path), "Save it as MIDI, or as JSON of steps."))
    found: dict[str, list[_File]] = {}
    with places.open_place(path) as place:
        for member in place.members:
            lower = member.base.lower()
            if lower.endswith(JSON):
                found.setdefault(_stem(member.base), []).append(_File(path, member.name))
            elif lower.endswith(MIDI):
                above = member.name.rpartition("/")[0].rpartition("/")[2]
                found.setdefault(above or _stem(path.absolute().name), []).append(_File(path, member.name))
            elif lower.endswith(".zip") and place.path.is_dir():
                for name, files in _listed(path / member.name).items():
                    found.setdefault(name, []).extend(files)
    return found


def _stem(name: str) -> str:
    for suffix in (*JSON, ".zip"):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def _read(composer: str, files: Sequence[_File]) -> Collection:
    """All pieces of a composer; files of MIDI that are of no use are left out, and told."""
    collection = Collection(composer)
    n_midi, left_out, n_drums = 0, [], 0
    with contextlib.ExitStack() as stack:
        archives: dict[Path, places.Place] = {}
        for file in files:
            if file.is_corpus:
                _read_corpus(file.name, collection)
                continue
            if file.place.is_file() and file.place not in archives:
                archives[file.place] = stack.enter_context(places.open_place(file.place))
            archive = archives.get(file.place)
            if file.name.lower().endswith(JSON):
                _read_json(file, archive, collection)
                continue
            n_midi += 1
            base = file.name.rpartition("/")[2]
            try:
                piece, drums = parse_midi(_bytes(file, archive), base.rpartition(".")[0], composer)
            except (Unreadable, OSError) as error:
                left_out.append(f"{base} ({error})")
                continue
            n_drums += bool(drums)
            collection.add(piece)
    if not collection.pieces:
        rule = f"hold a readable MIDI file of {composer}"
        step = f"None of {n_midi} can be used: {places.first(left_out, 3)}. Export them anew."
        raise ValueError(checks.message("root", rule, str(files[0].place), step))
    if left_out:
        told = f"Left out {len(left_out):,} of {n_midi:,} MIDI files of {composer}"
        collection.notes.append(f"{told}: {places.first(left_out, 3)}.")
    if n_drums:
        collection.notes.append(f"Percussion was left out of {n_drums:,} MIDI files of {composer}.")
    return collection


def _bytes(file: _File, archive: places.Place | None) -> bytes:
    if archive is None:
        path = file.place / file.name
        if not path.is_file():  # a pipe would wait for ever
            raise Unreadable("not a regular file")
        return path.read_bytes()
    try:
        return archive.read(file.name)
    except ValueError as error:
        raise Unreadable(f"damaged: {error}") from None


def _read_json(file: _File, archive: places.Place | None, collection: Collection) -> None:
    """Adds the pieces of a JSON: {split: [piece, ...]} or {name: piece}, a piece being a list of steps."""

    def refused(why: str) -> ValueError:
        rule = (
            "hold JSON of steps: {split: [piece, ...]} or {name: piece}, a piece a list of lists of pitches"
        )
        step = f"There, {why}. Mend it, or leave it out by `composers`."
        return ValueError(checks.message("root", rule, str(file.place / file.name), step))

    try:
        data = _bytes(file, archive)
        content = json.loads(gzip.decompress(data) if file.name.lower().endswith(".gz") else data)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise refused(f"nothing can be read ({str(error).partition(chr(10))[0] or 'cut short'})") from None
    if not (isinstance(content, dict) and content):
        raise refused(f"all is {'an empty' if content == {} else 'one'} {type(content).__name__}")
    if own := set(content) & set(SIDES):
        sides = {SIDES[key] for key in own}
        if others := sorted(set(content) - set(SIDES)):
            raise refused(f"{places.first(others, 3)} stands beside splits")
        if missing := {"train", "validation", "test"} - sides:
            raise refused(f"the split {sorted(missing)[0]} is missing")
        if wrong := [key for key in content if not isinstance(content[key], list)]:
            raise refused(f"{wrong[0]} is no list of pieces")
        rows = [
            (f"{SIDES[key]}-{number:03d}", piece, SIDES[key])
            for key in sorted(content)
            for number, piece in enumerate(content[key])
        ]
    else:
        rows = [(key, content[key], "") for key in sorted(content, key=places.natural)]
    for title, piece, side in rows:
        try:
            collection.add(_piece(title, piece, collection.composer), side)
        except (TypeError, ValueError):
            raise refused(f"{title} is no list of steps with pitches of 0..127") from None
    empty = [i for i, piece in enumerate(collection.pieces) if not any(piece.steps)]
    for i in reversed(empty):
        del collection.pieces[i], collection.sides[i]
    if empty:
        collection.notes.append(f"Left out {len(empty):,} pieces of {collection.composer} without a note.")
    if not collection.pieces:
        raise refused("no piece has a note")


def _piece(title: str, steps: Any, composer: str) -> Piece:
    if not (isinstance(steps, list) and all(isinstance(step, list) for step in steps)):
        raise TypeError("not a list of lists")
    kept = (tuple(_pitch(each) for each in step if each not in SILENT) for step in steps)
    return Piece(title, tuple(kept), composer)


def _pitch(number: Any) -> Any:
    """JSB's own file has some pitches as 62.0."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _read_corpus(name: str, collection: Collection) -> None:
    """Adds what music21's corpus has of a composer; grace notes and chord symbols are left out."""
    try:
        from music21 import corpus  # pyright: ignore[reportMissingImports]
    except ImportError:
        rule, step = "be installed to read its corpus", "Run: pip install 'qnnkit[music]'"
        raise ValueError(checks.message("music21", rule, "missing", step)) from None
    paths = corpus.getComposer(name)
    if not paths:
        step = "`music21.corpus.getCorePaths()` lists what there is; a name is such as bach."
        raise ValueError(checks.message("root", "name a composer of music21's corpus", CORPUS + name, step))
    for path in paths:
        score = corpus.parse(path).stripTies()
        notes = []
        for element in score.flatten().notes:
            if element.duration.isGrace or "ChordSymbol" in element.classes:
                continue
            start = round(float(element.offset) * STEPS_PER_QUARTER)
            stop = round(float(element.offset + element.duration.quarterLength) * STEPS_PER_QUARTER)
            notes += [Note(start, pitch.midi, max(1, stop - start)) for pitch in element.pitches]
        if notes:
            n_steps = max(note.start + note.duration for note in notes)
            collection.add(Piece.of_notes(Path(path).stem, notes, n_steps, collection.composer))
