"""A run folder brought back from where it was mirrored, and local copies freed that are safe there."""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from pathlib import Path

from qnnkit import workspace
from qnnkit.checkpoint import remote as there
from qnnkit.checkpoint.remote import Damaged, Entry, Note, State

SETTINGS, RESULT = "config.json", "result.json"
WAIT = 60.0
"""Seconds that whoever wants a folder waits while another process brings it."""


def restore(remote: Path, local: Path) -> list[str]:
    """Makes `local` from the state in `remote`; what had to be left out, in words.

    Nothing is deleted that could be wanted. A folder that a mirror is working on is left alone. So is one
    that is as new as the remote: it is where the run was computed. One that the remote has outrun (another
    machine has gone on), or that was not made from it, is set aside under a hidden name, which a note tells.
    A file that is damaged in `remote` is left out. Where there is no run, nothing happens.

    Raises:
        ValueError: The settings are damaged.
        OSError: The remote does not answer, or there is no room; nothing has changed then.
    """
    note, lock = there.read_note(local), None
    try:
        try:
            state = there.read_state(remote)
        except OSError as error:
            if note is None:
                raise
            return [
                f"`{remote}` does not answer ({error.strerror or error}); the run goes on from `{local}`,"
                " whether or not another machine has gone on with it."
            ]
        if state is None and (note is not None or not (remote / SETTINGS).is_file()):
            return []
        lock = there.hold(local, wait=WAIT if note is None else 0)
        note = there.read_note(local)  # another process may have brought it meanwhile
        known = note is not None and (state is None or state.owner == note.owner or state.mark == note.seen)
        return [] if lock is None or known else _bring(remote, local, state)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Run folder `{remote}` cannot be brought to `{local}` ({error.strerror or error}). See that "
            "Drive is mounted and that there is room, and run the same command again; nothing has changed.",
        ) from None
    finally:
        if lock is not None:
            lock.release()


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
    for left in root.rglob(".*.evicted"):
        shutil.rmtree(left, ignore_errors=True)
    notes = [path.relative_to(root) for path in root.rglob(there.NOTE)]
    sizes = {root / path.parent: _size(root / path.parent) for path in notes if "/." not in f"/{path.parent}"}
    finished = [folder for folder in sizes if (folder / RESULT).is_file()]
    for folder in sorted(finished, key=lambda folder: (folder / RESULT).stat().st_mtime):
        if sum(sizes.values()) <= limit:
            break
        lock = there.hold(folder)
        try:
            if lock is not None and _is_kept(folder):
                shutil.rmtree(folder.replace(folder.with_name(f".{folder.name}.evicted")))
                freed.append(folder)
                del sizes[folder]
        except OSError:  # not safe there as far as one can see: it stays
            continue
        finally:
            if lock is not None:
                lock.release()
    return freed


def _bring(remote: Path, local: Path, state: State | None) -> list[str]:
    workspace.make_folder(local)
    partial = local.with_name(f".{local.name}.restoring")
    shutil.rmtree(partial, ignore_errors=True)  # of a restore that a kill ended: this one holds the lock
    partial.mkdir()
    try:
        notes = _fill(remote, partial, state.files if state else None)
        if state is None and (remote / there.STATE).exists():
            notes.append(f"`{there.STATE}` is damaged in `{remote}`; the files there count as they are.")
        Note(owner=uuid.uuid4().hex, seen=state.mark if state else ("", 0)).save(partial)
        if any(local.iterdir()):
            aside = local.replace(local.with_name(f".{local.name}.set-aside-{uuid.uuid4().hex[:8]}"))
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        partial.replace(local)
        return notes
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fill(remote: Path, partial: Path, files: dict[str, Entry] | None) -> list[str]:
    """Writes a state, or the files as they are, into an empty folder; what is damaged, in words."""
    plain = list(there.visible(remote)) if files is None else []
    needed = sum((remote / path).stat().st_size for path in plain)
    needed += sum(size for size, _ in (files or {}).values())
    if needed > shutil.disk_usage(partial).free:
        raise OSError(errno.ENOSPC, f"it needs {needed / 1e9:.2f} GB, which this disk has not")
    notes = []
    for path in plain:
        (partial / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(remote / path, partial / path)
    for path, entry in (files or {}).items():
        (partial / path).parent.mkdir(parents=True, exist_ok=True)
        draft, why = there.draft_of(remote, path, entry).name, ""
        for name in (path, draft):  # a kill may have come before it got its name
            try:
                there.copy(partial / path, there.stored(remote, name, entry[0]), entry[1])
                break
            except Damaged as error:
                why = why or str(error)
        else:
            if path == SETTINGS:
                raise ValueError(
                    f"Run folder `{remote}` cannot be restored: its {SETTINGS} is damaged ({why}). Put it "
                    "back from Drive's trash or history, or choose another run_dir."
                )
            notes.append(f"{path} is damaged in `{remote}` ({why}); it is left out.")
    return notes


def _is_kept(folder: Path) -> bool:
    """Whether every file of a folder can be read back from its remote."""
    remote = workspace.remote_of(folder)
    state = remote and there.read_state(remote)
    if not remote or not state or not state.files:
        return False
    for path in there.visible(folder):
        with (folder / path).open("rb") as file:
            size = there.length(path, file)
            if state.files.get(path) != (size, there.hash_of(there.stretch(file, size))):
                return False
    return not there.damaged(remote, state.files)


def _size(folder: Path) -> int:
    """Bytes in a folder."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            found += path.stat().st_size * path.is_file()
    return found
