"""A run folder brought back from where it was mirrored."""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from pathlib import Path

from qnnkit import workspace
from qnnkit.checkpoint import copying
from qnnkit.checkpoint.copying import SETTINGS, Mark, rank

WAIT = 60.0
"""Seconds that whoever wants a folder waits while another process brings it."""
_TRIES = 4


def restore(remote: Path, local: Path) -> list[str]:
    """Makes `local` from what is in `remote`; returns what the user should know, in words.

    Nothing is deleted that could be wanted. A folder that a mirror is working on is left alone. So is one
    that is as new as the remote: it is where the run was computed. If the remote is newer (another machine
    has gone on) or another run's, the local folder is moved to a hidden name, which a note tells. Where
    there is no run, nothing happens. Checkpoints and rows are checked when they are used.

    Raises:
        ValueError: The settings are missing or damaged.
        OSError: The remote does not answer, or there is no room, and no local copy either.
    """
    marks, lock = copying.noted(local)[0], None
    try:
        mark = copying.mark_of(remote)
        names = [] if mark is None and marks else list(copying.visible(remote))
        if not any(1 <= rank(name)[0] <= 3 for name in names):
            return []  # no run, or one of which a kill left nothing
        if SETTINGS not in names or workspace.read_json(remote / SETTINGS) is None:
            step = "Put it back from Drive's trash or history, or choose another run_dir."
            raise ValueError(f"Run folder `{remote}` cannot be restored: it has no {SETTINGS}. {step}")
        workspace.make_folder(local)
        lock = copying.hold(local, wait=0 if marks else WAIT)
        if lock is None or mark in copying.noted(local)[0]:  # another process may have brought it meanwhile
            return []
        return _bring(remote, local, mark)
    except OSError as error:
        why = error.strerror or error
        if marks:
            return [f"`{remote}` does not answer ({why}), so the run goes on from `{local}` as it is."]
        raise OSError(
            error.errno,
            f"Run folder `{remote}` cannot be brought to `{local}` ({why}). See that Drive is mounted and "
            "that there is room, and run the same command again; nothing has changed.",
        ) from None
    finally:
        if lock is not None:
            lock.release()


def _bring(remote: Path, local: Path, mark: Mark | None) -> list[str]:
    partial, notes = local.with_name(f".{local.name}.restoring"), []
    try:
        for _ in range(_TRIES):  # another machine may be writing there
            shutil.rmtree(partial, ignore_errors=True)  # of the try before, or of a killed restore
            partial.mkdir()
            names = sorted(copying.visible(remote), key=rank, reverse=True)  # rows last: see `Mirror._look`
            needed = sum((remote / name).stat().st_size for name in names)
            if needed > shutil.disk_usage(partial).free:
                raise OSError(errno.ENOSPC, f"it needs {needed / 1e9:.2f} GB, which this disk has not")
            for name in names:
                with contextlib.suppress(FileNotFoundError), (remote / name).open("rb") as file:
                    copying.copy(file, name, partial)
            before, mark = mark, copying.mark_of(remote)
            if mark == before:
                break
        stamps = {name: copying.stamp(partial / name) for name in copying.visible(partial)}
        copying.note(partial, [mark or ["", 0]], stamps)
        if any(local.iterdir()):
            aside = local.replace(local.with_name(f".{local.name}.set-aside-{uuid.uuid4().hex[:8]}"))
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        partial.replace(local)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)
