"""The workspace: paths of runs and data, and atomic writing of files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import unicodedata
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.device.machine import on_colab

FULL = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean that there is no space left."""
DRIVE = Path("/content/drive")
"""Default mount point of Google Drive on Colab."""


def home() -> Path:
    """Returns the folder from which relative run folders are resolved: the first of these that is known.

    - `QNNKIT_HOME`.
    - The folder that `remember` recorded on this machine (on Colab: a folder on Drive).
    - On Colab, a folder on Drive, if it is mounted.
    - The current folder; its parent if it is a `notebooks/` with numbered notebooks in it.
    """
    current = Path.cwd()
    notebooks = current.name == "notebooks" and any(current.glob("0[0-6]_*.ipynb"))
    return _named("home") or (current.parent if notebooks else current)


def remember(home: str | Path, local: str | Path, mount: str | Path = DRIVE) -> Path:
    """Records where the workspace is, for every process of this user on this machine; returns the file.

    Args:
        home: Used if QNNKIT_HOME is not set.
        local: Used if QNNKIT_LOCAL is not set.
        mount: Mount point of the disk of `home`.
    """
    file = _remembered_in()
    make_folder(file.parent)
    write_json(file, {"home": str(home), "local": str(local), "mount": str(mount)})
    return file


def _remembered_in() -> Path:
    import platformdirs

    return platformdirs.user_config_path("qnnkit") / "workspace.json"


def _paths() -> dict[str, str]:
    """Returns `home`, `local` and `mount`: from the environment, else as recorded on this machine."""
    paths = {name: os.environ.get(f"QNNKIT_{name.upper()}", "") for name in ("home", "local")}
    if not any(paths.values()):
        with contextlib.suppress(OSError, ValueError):
            paths = dict(read_json(_remembered_in()) or {})
        if not any(paths.values()) and on_colab() and DRIVE.is_mount():
            paths = {"home": str(DRIVE / "MyDrive" / "qnnkit"), "local": "/content/qnnkit-local"}
    return {"mount": str(DRIVE)} | paths


def _named(name: str) -> Path | None:
    """Returns a path of `_paths`; None if it is missing or empty."""
    value = _paths().get(name)
    return expanded(value) if value else None


def is_known() -> bool:
    """Whether the workspace can be used: on Colab, it must be set and its disk mounted."""
    return not on_colab() or (_named("home") is not None and not is_away(home()))


def is_away(path: Path) -> bool:
    """Whether a path is on Drive while Drive is not mounted: a file there would prevent mounting it."""
    mount = Path(_paths()["mount"])
    return _flat(path).is_relative_to(_flat(mount)) and on_colab() and not mount.is_mount()


def require_mounted(path: Path) -> None:
    """Raises OSError if `is_away`."""
    if is_away(path):
        mount = _paths()["mount"]
        step = f"Mount it with colab_setup.ipynb or `google.colab.drive.mount('{mount}')`"
        fault = f"Drive is not mounted at `{mount}`, which is to hold `{path}`"
        raise OSError(errno.ENODEV, f"{fault}. {step}, and run this again")


def shelf(name: str) -> Path | None:
    """Returns the folder `name` of the workspace, for cached files; None if no workspace is in use.

    A workspace is in use if it is set, or if it holds runs, and if its Drive is mounted. The folder is never
    in `QNNKIT_LOCAL`, so that a run that continues on another machine finds the same files.
    """
    folder = home()
    in_use = _named("home") is not None or (folder / "runs").is_dir()
    return folder / name if in_use and not is_away(folder) else None


def expanded(path: str | Path) -> Path:
    """Returns a path with `~` replaced by the user's home folder, if the system knows it."""
    with contextlib.suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def place(path: str | Path) -> Path:
    """Returns `path` made absolute; a relative path is resolved from `home()`.

    macOS may separate accents from their letters (NFD), Linux usually does not (NFC): the form that exists is
    used.
    """
    path = home().absolute() / expanded(path)
    if str(path).isascii():
        return path
    forms = [path, *(Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD"))]
    return next((form for form in forms if form.exists()), path)


def data_place(root: str) -> str:
    """Returns the place of data: a URL unchanged, a path made absolute by `place`."""
    return root if "://" in root else str(place(root))


def portable(path: str) -> str:
    """Returns a path inside the workspace as `./...`, valid wherever that moves; other paths unchanged.

    Example:
        >>> portable("/elsewhere/images"), portable("gs://bucket/images"), portable(str(home() / "images"))
        ('/elsewhere/images', 'gs://bucket/images', './images')
    """
    inside = _inside(Path(path), home()) if Path(path).is_absolute() else None
    return path if inside is None else f"./{inside.as_posix()}"


def located(path: str) -> str:
    """Returns a result of `portable` as a path of this workspace; other names unchanged."""
    return str(place(path[2:])) if path.startswith("./") else path


def local_home() -> Path | None:
    """Returns the folder on local disk in which runs are worked on; None if that is `home()`.

    Raises:
        ValueError: `QNNKIT_LOCAL` is not absolute, overlaps `QNNKIT_HOME`, or is set without it.
    """
    local, remote = _named("local"), _named("home")
    if local is None:
        return None
    one, other = _flat(local), _flat(remote or local)  # compares names only, as Drive may hang
    if not local.is_absolute() or one.is_relative_to(other) or other.is_relative_to(one):
        rule = "be an absolute path outside QNNKIT_HOME, which must be set too"
        step = f"QNNKIT_HOME is {remote or 'not set'}. Choose a folder on local disk, or unset it."
        raise ValueError(checks.message("QNNKIT_LOCAL", rule, str(local), step))
    return local


def run_folder(run_dir: str | Path) -> Path:
    """Returns the folder to which a run is written: `place(run_dir)`, or its local copy in `QNNKIT_LOCAL`.

    Raises:
        FileNotFoundError: `QNNKIT_LOCAL` is set but `QNNKIT_HOME` does not exist: Drive is not mounted, and a
            run that has begun there must not begin again here.
    """
    path, local = place(run_dir), local_home()
    require_mounted(path)
    inside = _inside(path, home()) if local else None
    if local is None or inside is None:
        return path
    checks.folder("QNNKIT_HOME", home(), "Mount Drive, or make the folder.")
    return local / inside


def remote_of(local: Path) -> Path | None:
    """Returns the folder to which `local` is mirrored, without accessing it; None if there is none."""
    root = local_home()
    inside = _inside(local, root) if root else None
    return home().absolute() / inside if inside else None


def _inside(path: Path, folder: Path) -> Path | None:
    """Returns `path` relative to `folder`, if it is below it by name or after links are resolved."""
    for inner, outer in ((_flat(path), _flat(folder)), (path.resolve(), folder.resolve())):
        if outer in inner.parents:
            return inner.relative_to(outer)
    return None


def _flat(path: Path) -> Path:
    """Returns an absolute path without `..`; follows no links."""
    return Path(os.path.normpath(path.absolute()))


# --- files --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Adds the path, the cause and the next step to an OSError inside; raises one if Drive is not mounted."""
    require_mounted(path)
    try:
        yield
    except OSError as error:
        if not error.errno or str(error.strerror).startswith("Cannot write"):  # has its message already
            raise
        step = "Free some space" if error.errno in FULL else "Choose a folder that you may write to"
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            step = "A file is in its place: choose another name"
        why = f"Cannot write `{path}` ({error.strerror}). {step} and run the same command again; earlier "
        raise type(error)(error.errno, f"{why}files are undamaged.") from None


def make_folder(path: Path) -> Path:
    """Returns `path`, made if missing; raises OSError if nothing can be written there (tested by writing)."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def draft_of(path: Path) -> Path:
    """Returns the path of a file until it is complete: next to `path`, with a unique name."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file at `path` atomically; a kill or a full disk leaves the old one intact.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    draft = draft_of(path)
    with writing(path), contextlib.ExitStack() as last:
        last.callback(draft.unlink, missing_ok=True)
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Writes plain values as JSON; see `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Appends one JSON line; removes an incomplete line that a kill or a full disk left.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with writing(path), path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":  # rare
            file.seek(0)
            file.truncate(file.read(end).rfind(b"\n") + 1)
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def parse_lines(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """Returns the complete lines that are rows, and the number of complete lines that are not."""
    lines = [line for line in content.split(b"\n")[:-1] if line]  # the last one is incomplete
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict)]
    return rows, len(lines) - len(rows)


def read_json(path: Path, kinds: Mapping[str, Any] | None = None) -> Any:
    """Returns the plain values in a JSON file; None if it is missing.

    Args:
        path: The file.
        kinds: Types of values, by name, checked for those that the file has. With this, it must be an object.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        values = json.loads(path.read_bytes())
        for name, kind in (kinds or {}).items():
            if not isinstance(values, dict) or (name in values and not isinstance(values[name], kind)):
                raise ValueError(f"its `{name}` has a wrong type")
        return values
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(
            f"File `{path}` is damaged ({error}). Restore it from a copy, or delete it and run the same "
            "command again."
        ) from None


@contextlib.contextmanager
def whole_folder(folder: str | Path, *, replaces: bool = True) -> Iterator[Path]:
    """Yields a hidden folder next to `folder`, which replaces it at the end; removed after an error.

    One call at a time writes a folder. The next call removes what a kill has left.

    Args:
        folder: The folder.
        replaces: Whether an earlier folder is replaced if everything directly in it has a new version.

    Raises:
        FileExistsError: There is an earlier folder that is not replaced.
        OSError: The disk is full or read-only.
    """
    from filelock import FileLock

    folder = Path(folder).expanduser().absolute()
    draft, old, lock = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old", "lock"))

    def tidy() -> None:
        if old.exists() and not folder.exists():  # between the two renames below
            old.rename(folder)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)

    with writing(folder), FileLock(lock), contextlib.ExitStack() as last:
        tidy()
        last.callback(lock.unlink, missing_ok=True)
        last.callback(tidy)
        draft.mkdir(parents=True)
        yield draft
        earlier = [path.name for path in folder.iterdir()] if folder.exists() else []
        if others := [name for name in earlier if not (replaces and (draft / name).exists())]:
            step = f"It holds {others[0]}: choose another name."
            rule = "be absent, empty or an earlier save" if replaces else "be absent or empty"
            raise FileExistsError(checks.message("folder", rule, str(folder), step))
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
