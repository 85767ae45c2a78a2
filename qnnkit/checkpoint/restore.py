"""A run folder brought back from where it was mirrored, and local copies freed that are safe there."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from qnnkit import workspace
from qnnkit.checkpoint import local as here
from qnnkit.checkpoint import stored
from qnnkit.checkpoint.local import Note
from qnnkit.checkpoint.stored import Damaged, Manifest

SETTINGS, RESULT = "config.json", "result.json"
_LEFTOVER = re.compile(r"\..+\.(restoring|evicted)-[0-9a-f]{8}")
"""Hidden folders that a kill may leave behind, and that nobody needs then."""


def restore(remote: Path, local: Path) -> list[str]:
    """Makes `local` from the newest whole state in `remote`; what had to be left out, in words.

    Nothing is deleted that could be wanted. A folder that a mirror is working on is left alone. So is one
    that is as new as the remote: it is where the run was computed. One that the remote has outrun (another
    machine has gone on), or that was not made from it, is set aside under a hidden name, which a note tells.

    Where the hashes of no state all fit, the newest with whole settings serves: a damaged file is left out,
    lines end where they are damaged. A remote run that no mirror wrote is copied as it is; where there is no
    run, nothing happens.

    Raises:
        ValueError: There are states, but none whose settings are whole.
        OSError: The remote does not answer, or there is no room; nothing has changed then.
    """
    lock = here.hold(local) if local.is_dir() else None
    if lock is None and local.is_dir():
        return []
    try:
        if lock is not None:
            try:
                if not _outrun(remote, here.read_note(local)):
                    return []
            except OSError as error:
                return [
                    f"`{remote}` does not answer ({error.strerror or error}); the run goes on from `{local}`,"
                    " whether or not another machine has gone on with it."
                ]
        return _bring(remote, local)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Run folder `{remote}` cannot be brought to `{local}` ({error.strerror or error}). See that "
            "Drive is mounted and that there is room, and run the same command again; nothing has changed.",
        ) from None
    finally:
        if lock is not None:
            lock.release()


def stored_file(remote: Path, path: str) -> bytes | None:
    """A file of the newest state that is stored in `remote`; None where there is none or it is damaged."""
    for state in stored.states(remote):
        if path in state.files:
            try:
                return b"".join(
                    chunk for piece in state.files[path] for chunk in stored.read_piece(remote, piece)
                )
            except (Damaged, OSError):
                continue
    return None


def evict(limit_bytes: int | None = None) -> list[Path]:
    """Frees local run folders until all of them fit, and gives those that it freed: oldest results first.

    Only a folder whose run is finished and whose every file was just read back from the remote is freed; the
    next `restore` brings it back.

    Args:
        limit_bytes: None takes what `QNNKIT_LOCAL_GB` says, or 20 GB.

    Raises:
        ValueError: A variable holds no number, or paths that cannot be.
    """
    limit = workspace.local_limit() if limit_bytes is None else limit_bytes
    root, freed = workspace.local_home(), []
    if root is None or not root.is_dir():
        return freed
    folders, leftovers = _below(root)
    _sweep(leftovers)
    sizes = {folder: _size(folder) for folder in folders}
    for folder in sorted(folders, key=_finished):
        remote = workspace.remote_of(folder)
        if sum(sizes.values()) <= limit:
            break
        if remote is None or not (folder / RESULT).is_file():
            continue
        lock = None
        try:
            lock = here.hold(folder)
            if lock is not None and _is_kept(folder, remote):
                shutil.rmtree(_hidden(folder, "evicted", move=True))
                freed.append(folder)
                del sizes[folder]
        except OSError:  # not safe there as far as one can see: it stays
            continue
        finally:
            if lock is not None:
                lock.release()
    return freed


def _outrun(remote: Path, note: Note | None) -> bool:
    """Whether a remote holds what a local folder with this note does not come from."""
    states = list(stored.states(remote))
    if note is None:
        return bool(states) or _is_plain(remote)
    return any(state.number > note.number and state.owner != note.owner for state in states)


def _bring(remote: Path, local: Path) -> list[str]:
    numbers = stored.numbers(remote)
    if not numbers and not _is_plain(remote):
        return []
    workspace.make_folder(local)
    _sweep(local.parent.glob(f".{glob.escape(local.name)}.restoring-*"))
    partial = _hidden(local, "restoring")
    lock = here.hold(partial)
    try:
        notes = (
            _fill(remote, partial, max(*numbers, stored.pointed(remote)))
            if numbers
            else _fill_plainly(remote, partial)
        )
        if any(path.name != here.LOCK for path in local.iterdir()):
            aside = _hidden(local, "set-aside", move=True)
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        else:
            (local / here.LOCK).unlink(missing_ok=True)
        partial.replace(local)
        return notes
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            lock.release()


def _fill(remote: Path, partial: Path, highest: int) -> list[str]:
    """Writes the best state into an empty folder."""
    states = list(stored.states(remote))
    settled = [state for state in states if SETTINGS in state.files]
    best: Manifest | None = None
    for state in settled:
        damage = _write(remote, state, partial)
        if not damage:
            best = state
            break
        if best is None and not any(path == SETTINGS for path, _ in damage):
            best = state
    if best is None and (settled or not states):
        raise ValueError(
            f"Run folder `{remote}` cannot be restored: no state in it has a whole {SETTINGS}. Put its files "
            "back from Drive's trash or history, or choose another run_dir."
        )
    base = best or states[0]  # which holds no run yet: there is nothing to be lost
    damage = _write(remote, base, partial)
    Note(number=highest, base=base.number).save(partial)
    notes = [f"{path} is damaged in `{remote}` ({why})." for path, why in damage]
    if best is not None and best is not states[0]:
        notes.append(f"State {states[0].number} is not whole; the run goes on from state {best.number}.")
    return notes


def _write(remote: Path, state: Manifest, partial: Path) -> list[tuple[str, str]]:
    """Makes a folder hold that state and nothing else; what is damaged, and how it is left."""
    _empty(partial)
    needed = sum(piece.size for piece in state.pieces)
    if needed > shutil.disk_usage(partial).free:
        raise OSError(errno.ENOSPC, f"it needs {needed / 1e9:.2f} GB, which this disk has not")
    damage = []
    for path, pieces in state.files.items():
        target, whole = partial / path, 0
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("wb") as file:
                for piece in pieces:
                    for chunk in stored.read_piece(remote, piece):
                        file.write(chunk)
                    whole += piece.size
        except Damaged as error:
            if path.endswith(".jsonl"):
                os.truncate(target, whole)
                damage.append((path, f"{error}; its lines end before that"))
            else:
                target.unlink()
                damage.append((path, f"{error}; it is left out"))
    return damage


def _fill_plainly(remote: Path, partial: Path) -> list[str]:
    for path in here.visible(remote):
        if not stored.is_segment(path):  # the beginning of a mirror that was killed
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(remote / path, partial / path)
    Note().save(partial)
    return []


def _is_plain(remote: Path) -> bool:
    return (remote / SETTINGS).is_file()


def _is_kept(folder: Path, remote: Path) -> bool:
    """Whether every file of a folder can be read back from the current state of its remote."""
    state = next(stored.states(remote), None)
    if state is None:
        return False
    for path in here.visible(folder):
        digest, there = hashlib.sha256(), hashlib.sha256()
        with (folder / path).open("rb") as file:
            size = (
                workspace.whole_length(file) if path.endswith(".jsonl") else os.fstat(file.fileno()).st_size
            )
            for chunk in here.stretch(file, 0, size):
                digest.update(chunk)
        try:
            for piece in state.files.get(path, ()):
                for chunk in stored.read_piece(remote, piece):
                    there.update(chunk)
        except Damaged:
            return False
        if path not in state.files or digest.digest() != there.digest():
            return False
    return True


def _below(root: Path) -> tuple[list[Path], list[Path]]:
    """The folders below `root` that were mirrored or restored, and what a kill has left beside them."""
    found, leftovers = [], []
    for above, folders, names in os.walk(root):
        if here.NOTE in names:
            found.append(Path(above))
            folders.clear()
        leftovers += [Path(above) / name for name in folders if _LEFTOVER.fullmatch(name)]
        folders[:] = [name for name in folders if not name.startswith(".")]
    return found, leftovers


def _finished(folder: Path) -> float:
    """When a run wrote its result; 0 for one that has none."""
    try:
        return (folder / RESULT).stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Bytes in a folder; a file with two names counts once."""
    found = {}
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = (Path(above) / name).lstat()
                found[status.st_ino] = status.st_size
    return sum(found.values())


def _hidden(folder: Path, doing: str, *, move: bool = False) -> Path:
    """A new hidden folder beside `folder`; with `move`, `folder` itself under that name."""
    made = folder.with_name(f".{folder.name}.{doing}-{uuid.uuid4().hex[:8]}")
    if move:
        return folder.replace(made)
    made.mkdir()
    return made


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == here.LOCK:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sweep(leftovers: Iterable[Path]) -> None:
    """Deletes what a kill has left of a restore or an eviction, as long as nobody is at it."""
    for folder in leftovers:
        lock = here.hold(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
