"""A run folder brought back from where it was mirrored, and local copies freed that are safe there."""

from __future__ import annotations

import errno
import shutil
import uuid
from pathlib import Path

from qnnkit import workspace
from qnnkit.checkpoint import remote as there

WAIT = 60.0
"""Seconds that whoever wants a folder waits while another process brings it."""


def restore(remote: Path, local: Path) -> list[str]:
    """Makes `local` from what is in `remote`; returns what had to be left out, in words.

    Nothing is deleted that could be wanted. A folder that a mirror is working on is left alone. So is one
    that is as new as the remote: it is where the run was computed. One that the remote has outrun (another
    machine has gone on), or that was not made from it, is set aside under a hidden name, which a note tells.
    A file that is damaged in `remote` is left out. Where there is no run, nothing happens.

    Raises:
        ValueError: The settings are damaged.
        OSError: The remote does not answer, or there is no room; nothing has changed then.
    """
    marks, lock = there.marks_of(local), None
    try:
        try:
            mark = there.mark_of(remote)
            if mark is None and (marks is not None or not (remote / there.SETTINGS).is_file()):
                return []
        except OSError as error:
            if marks is None:
                raise
            return [
                f"`{remote}` does not answer ({error.strerror or error}); the run goes on from `{local}`,"
                " whether or not another machine has gone on with it."
            ]
        lock = there.hold(local, wait=WAIT if marks is None else 0)
        marks = there.marks_of(local)  # another process may have brought it meanwhile
        known = marks is not None and (mark is None or mark in marks)
        return [] if lock is None or known else _bring(remote, local, mark)
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
    """Frees local run folders until all of them fit, and returns those that it freed: oldest results first.

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
    folders = [
        path.parent for path in root.rglob(there.NOTE) if "/." not in str(path.parent.relative_to(root))
    ]
    sizes = {
        folder: sum((folder / name).stat().st_size for name in there.visible(folder)) for folder in folders
    }
    finished = [folder for folder in folders if (folder / there.RESULT).is_file()]
    for folder in sorted(finished, key=lambda folder: (folder / there.RESULT).stat().st_mtime):
        lock = there.hold(folder) if sum(sizes.values()) > limit else None
        if lock is None:
            continue
        try:
            remote = workspace.remote_of(folder)
            kept = there.entries(remote, reads=True) if remote and there.mark_of(remote) else {}
            if there.entries(folder).items() <= kept.items():
                shutil.rmtree(folder.replace(folder.with_name(f".{folder.name}.evicted")))
                freed.append(folder)
                del sizes[folder]
        except OSError:  # not safe there as far as one can see: it stays
            continue
        finally:
            lock.release()
    return freed


def _bring(remote: Path, local: Path, mark: there.Mark | None, tries: int = 4) -> list[str]:
    paths = {name: remote / name for name in there.visible(remote)} | there.drafts(remote)
    listed = {name: (path.stat().st_size, there.digits(name)) for name, path in paths.items()}
    files = there.listed(remote) or listed
    if there.SETTINGS not in files and not any(there.rank(name)[0] in there.STATES for name in files):
        return []  # no run, or one of which a kill left nothing
    workspace.make_folder(local)
    partial = local.with_name(f".{local.name}.restoring")
    shutil.rmtree(partial, ignore_errors=True)  # of a restore that a kill ended: this one holds the lock
    partial.mkdir()
    try:
        notes, needed = [], sum(size for size, _ in files.values())
        if needed > shutil.disk_usage(partial).free:
            raise OSError(errno.ENOSPC, f"it needs {needed / 1e9:.2f} GB, which this disk has not")
        for name in sorted({there.SETTINGS, *files}, key=there.rank, reverse=True):  # see `Mirror._look`
            why: object = "it is missing"
            if name in paths:
                try:
                    with paths[name].open("rb") as file:
                        there.copy(file, partial / name, partial / there.DRAFT, files[name])
                    continue
                except (there.Damaged, FileNotFoundError) as error:
                    why = error.strerror or error
            if name == there.SETTINGS:
                raise ValueError(
                    f"Run folder `{remote}` cannot be restored: its {name} is damaged ({why}). Put it "
                    "back from Drive's trash or history, or choose another run_dir."
                )
            notes.append(f"{name} is damaged in `{remote}` ({why}); it is left out.")
        if tries and (newer := there.mark_of(remote)) != mark:  # another machine is writing there
            return _bring(remote, local, newer, tries - 1)
        there.note(partial, [mark or ["", 0]])
        if any(local.iterdir()):
            aside = local.replace(local.with_name(f".{local.name}.set-aside-{uuid.uuid4().hex[:8]}"))
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        partial.replace(local)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)
