"""One local folder brought to its remote place, state by state: what `Mirror` does again and again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Container, Iterator
from pathlib import Path

from qnnkit.checkpoint import local as here
from qnnkit.checkpoint import stored
from qnnkit.checkpoint.local import Content, Known, Note, Seen
from qnnkit.checkpoint.stored import Damaged, Manifest, Piece

_LARGE = 1 << 20
"""Bytes from which the same content under two paths is stored once."""


class TakenOver(Exception):
    """Another copy of the folder has been mirrored since."""


class Publisher:
    """Stores the states of a local folder; only one may exist per folder, see `local.hold`."""

    def __init__(self, local: Path, remote: Path):
        self.local, self.remote = local, remote
        self.note = here.read_note(local) or Note()
        self.known: dict[str, Known] = {}
        self.beat = time.monotonic()
        """When something last moved: a slow Drive is told from one that hangs."""
        self._noted = self._begun = False
        self._torn = False
        self._disk: int | None = None
        self._recent: dict[int, Manifest] = {}
        self._written: dict[str, Piece] = {}
        self._drafts: set[Path] = set()

    def sync(self) -> bool:
        """Stores what is new and makes it the current state; says whether anything was.

        Raises:
            OSError: Something could not be read or written; what was current still is.
            TakenOver: The remote holds a newer state that another copy wrote.
        """
        if not self._noted:
            self.note.save(self.local)
            self._noted = True
        if not (self.local / here.NOTE).exists():
            raise FileNotFoundError(errno.ENOENT, f"`{self.local / here.NOTE}` is gone")
        self._require_same_disk()
        self.remote.mkdir(parents=True, exist_ok=True)
        try:
            self._begin()
            seen = here.scan(self.local, self.known, self.tick)
            try:
                if any(each.content for each in seen.values()):
                    self._require_own(stored.numbers(self.remote))
                files = self._store(seen)
            finally:
                here.close(seen)
        except Damaged as error:
            raise OSError(f"the folder changed while it was copied: {error}") from None
        new = self._torn or files != {name: each.pieces for name, each in self.known.items()}
        if new:
            self._require_own(numbers := stored.numbers(self.remote))
            self._publish(files, numbers)
            self._torn = False
        self.known = {name: Known(pieces, seen[name].hint) for name, pieces in files.items()}
        if new:
            with contextlib.suppress(OSError):  # left over, not lost: tried again after the next state
                self._clear()
        return new

    def check(self) -> None:
        """Reads back all that the current state names; what is damaged is forgotten, to be stored anew.

        Raises:
            OSError: Something is not there as it was written, or cannot be read.
        """
        self.tick()
        state = next(stored.states(self.remote), None)
        if state is not None and state.owner != self.note.owner:
            raise self._taken_over(state.number)
        if state is None or not state.number == self.note.base == stored.pointed(self.remote):
            self._torn = True
            raise OSError(f"`{stored.manifest_name(self.note.base)}` was written but cannot be read back")
        damaged: dict[str, str] = {}
        for piece in {piece.name: piece for piece in state.pieces}.values():
            try:
                for _ in stored.read_piece(self.remote, piece):
                    self.tick()
            except Damaged as error:
                damaged[piece.name] = str(error)
        for path, pieces in state.files.items():
            if any(piece.name in damaged for piece in pieces):
                self.known.pop(path, None)
        if damaged:
            raise OSError(f"what was written cannot be read back: {', '.join(damaged.values())}")

    def sync_and_check(self) -> None:
        self.sync()
        self.check()

    def tick(self) -> None:
        self.beat = time.monotonic()

    def _require_same_disk(self) -> None:
        """A Drive that is no longer mounted leaves an ordinary folder behind, which must not be filled."""
        above = self.remote
        while not above.exists():
            above = above.parent
        disk = above.stat().st_dev
        if self._disk not in (None, disk):
            raise OSError(f"`{self.remote}` is no longer on the disk that it was on; is Drive still mounted?")
        self._disk = disk

    def _begin(self) -> None:
        """Finds what is stored already, and says in the remote that this copy goes on from there."""
        if self._begun:
            return
        numbers = stored.numbers(self.remote)
        self._require_own(numbers)
        for draft in self.remote.glob(f"{stored.DRAFT}*"):
            draft.unlink(missing_ok=True)
        recent = [self._read(number) for number in numbers[: stored.KEEP]]
        base = next((state for state in recent if state and state.number == self.note.base), None)
        base = base or next(iter(stored.states(self.remote)), None)
        if base is not None and base.owner != self.note.owner:
            self._publish(dict(base.files), numbers)
        elif not numbers and not (self.remote / "config.json").exists():
            self._publish({}, numbers)  # else a kill now would leave files that look like a run
        self.known = {name: Known(pieces) for name, pieces in base.files.items()} if base else {}
        self._torn = stored.pointed(self.remote) != self.note.base  # a kill came between manifest and pointer
        self._begun = True

    def _require_own(self, numbers: list[int]) -> None:
        for number in numbers:
            if number <= self.note.number:
                return
            found = self._read(number)
            if found is None:
                continue
            if found.owner != self.note.owner:
                raise self._taken_over(number)
            self.note = Note(self.note.owner, number, number)  # a kill came before the note
            return

    def _taken_over(self, number: int) -> TakenOver:
        return TakenOver(
            f"Another copy of this run has been mirrored to `{self.remote}` since (state {number}), so this "
            f"one, in `{self.local}`, is mirrored no more. Keep one of the two: stop this one, or move "
            f"`{self.remote}` away and run the same command again."
        )

    def _read(self, number: int) -> Manifest | None:
        if number not in self._recent:
            found = stored.read_manifest(self.remote, number)
            if found is None:
                return None
            self._recent[number] = found
        return self._recent[number]

    def _store(self, seen: dict[str, Seen]) -> dict[str, tuple[Piece, ...]]:
        """Writes all new content as drafts, then gives each its name: a kill leaves few nameless files."""
        files: dict[str, tuple[Piece, ...]] = {}
        moves: dict[str, tuple[Piece, Path]] = {}
        now = {piece.name: piece for each in self.known.values() for piece in each.pieces}
        earlier = {piece.name: piece for state in self._recent.values() for piece in state.pieces}
        large = {piece.sha256: piece for piece in now.values() if piece.size >= _LARGE}
        for path, each in seen.items():
            files[path] = each.pieces
            if each.content is not None:
                piece = large.get(each.content.sha256)
                if piece is None:
                    piece = self._free(path, each.content, now.keys() | moves.keys())
                    if not os.path.lexists(self.remote / piece.name):
                        moves[piece.name] = piece, self._draft(piece.name, each.content)
                    elif piece.name not in self._written:
                        piece = earlier.get(piece.name, piece.model_copy(update={"found": True}))
                if piece.size >= _LARGE:
                    large[piece.sha256] = piece
                files[path] = (*each.pieces, piece)
        for piece, draft in moves.values():
            self._drafts.discard(draft)
            stored.name_draft(draft, self.remote / piece.name)
            self._written[piece.name] = piece
        return files

    def _free(self, path: str, content: Content, taken: Container[str]) -> Piece:
        """The piece that content becomes: named as its path where that is free, else with some of its hash.

        What has that name and this content already, as after a kill, need not be written again.
        """
        natural = path
        if path.endswith(".jsonl"):
            natural = stored.versioned(path, f"{content.start:09d}-{content.start + content.size:09d}")
        marks = [content.sha256[:8], content.sha256, *(f"{content.sha256}-{n}" for n in range(2, 10))]
        for name in [natural, *(stored.versioned(natural, mark) for mark in marks)]:
            piece = Piece(name=name, sha256=content.sha256, size=content.size)
            there = os.path.lexists(self.remote / name)
            if name not in taken and not stored.reserved(name) and (not there or self._holds(piece)):
                return piece
        raise OSError(f"every name for `{path}` is taken in `{self.remote}`")

    def _holds(self, piece: Piece) -> bool:
        try:
            for _ in stored.read_piece(self.remote, piece):
                self.tick()
        except Damaged:
            return False
        return True

    def _draft(self, name: str, content: Content) -> Path:
        """Content on the remote disk, under a hidden name; a draft that is whole is not written again."""
        mark = hashlib.sha256(f"{name} {content.sha256}".encode()).hexdigest()[:16]
        draft = self.remote / f"{stored.DRAFT}{mark}"
        if draft not in self._drafts or not draft.exists():
            stored.write_draft(draft, self._ticking(content.chunks()))
            self._drafts.add(draft)
        return draft

    def _ticking(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.tick()

    def _publish(self, files: dict[str, tuple[Piece, ...]], numbers: list[int]) -> None:
        number = max(self.note.number, stored.pointed(self.remote), *numbers, 0) + 1
        manifest = Manifest(number=number, owner=self.note.owner, files=files)
        stored.publish(self.remote, manifest)
        self.tick()
        self._recent[number] = manifest
        self.note = Note(self.note.owner, number, number)
        self.note.save(self.local)

    def _clear(self) -> None:
        """Deletes the states before the last few and what only they name; nothing that no mirror wrote."""
        numbers = stored.numbers(self.remote)
        kept = [self._read(number) for number in numbers[: stored.KEEP]]
        names = {piece.name for state in kept if state for piece in state.pieces}
        for number in reversed(numbers[stored.KEEP :]):
            state = self._read(number)
            for piece in state.pieces if state else ():
                if piece.name not in names and not piece.found:
                    self._delete(piece)
            (self.remote / stored.manifest_name(number)).unlink(missing_ok=True)
            self._recent.pop(number, None)
        for name in self._written.keys() - names:  # stored for a state that was never finished
            self._delete(self._written.pop(name))
        while self._drafts:
            self._drafts.pop().unlink(missing_ok=True)

    def _delete(self, piece: Piece) -> None:
        """Deletes a stored file, unless its size tells that somebody has put one of theirs in its place."""
        path = self.remote / piece.name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size == piece.size:
                path.unlink()
