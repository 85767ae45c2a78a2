"""Where things live, and how files are written there: whole or not at all."""

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
"""Error numbers that mean: no more fits here."""
DRIVE = Path("/content/drive")
"""Where Colab mounts Google Drive, if nobody has said otherwise."""


def home() -> Path:
    """The folder that relative run folders are meant from: the first of these that there is.

    - `QNNKIT_HOME`.
    - What `remember` wrote down on this machine (on Colab: a folder on Drive).
    - On Colab, a folder on Drive, if that is mounted.
    - The current folder; the one around it if it is a `notebooks/` with numbered notebooks in it.
    """
    here = Path.cwd()
    notebooks = here.name == "notebooks" and any(here.glob("0[0-6]_*.ipynb"))
    return _named("home") or (here.parent if notebooks else here)


def remember(home: str | Path, local: str | Path, mount: str | Path = DRIVE) -> Path:
    """Writes down where the workspace is, for every process of this user on this machine; returns the file.

    Args:
        home: As QNNKIT_HOME, which comes before it.
        local: As QNNKIT_LOCAL, likewise.
        mount: Where the disk of `home` is mounted.
    """
    file = _remembered_in()
    make_folder(file.parent)
    write_json(file, {"home": str(home), "local": str(local), "mount": str(mount)})
    return file


def _remembered_in() -> Path:
    import platformdirs

    return platformdirs.user_config_path("qnnkit") / "workspace.json"


def _known() -> dict[str, str]:
    """Where `home`, `local` and `mount` are: as the environment says, else as this machine remembers."""
    known = {name: os.environ.get(f"QNNKIT_{name.upper()}", "") for name in ("home", "local")}
    if not any(known.values()):
        with contextlib.suppress(OSError, ValueError):
            known = dict(read_json(_remembered_in()) or {})
        if not any(known.values()) and on_colab() and DRIVE.is_mount():
            known = {"home": str(DRIVE / "MyDrive" / "qnnkit"), "local": "/content/qnnkit-local"}
    return {"mount": str(DRIVE)} | known


def _named(name: str) -> Path | None:
    """A path of `_known`; None where it is not known, or an empty text."""
    value = _known().get(name)
    return expanded(value) if value else None


def is_known() -> bool:
    """Whether the workspace can be used: on Colab, somebody has chosen it and its disk is mounted."""
    return not on_colab() or (_named("home") is not None and not is_away(home()))


def is_away(path: Path) -> bool:
    """Whether a path lies on Drive, and Drive is not mounted: a file there would bar its way back."""
    mount = Path(_known()["mount"])
    return _flat(path).is_relative_to(_flat(mount)) and on_colab() and not mount.is_mount()


def require_mounted(path: Path) -> None:
    """Raises OSError where `is_away`."""
    if is_away(path):
        mount = _known()["mount"]
        step = f"Mount it, by colab_setup.ipynb or `google.colab.drive.mount('{mount}')`"
        where = f"Drive is not mounted at `{mount}`, where `{path}` would lie"
        raise OSError(errno.ENODEV, f"{where}. {step}, and run this again")


def shelf(name: str) -> Path | None:
    """The folder `name` of the workspace, for what may be made again; None if no workspace is in use.

    A workspace is in use if somebody has named it, or if it holds runs, and its Drive is mounted. The folder
    is never in `QNNKIT_LOCAL`: a run that continues elsewhere must decide by the same measurements.
    """
    folder = home()
    in_use = _named("home") is not None or (folder / "runs").is_dir()
    return folder / name if in_use and not is_away(folder) else None


def expanded(path: str | Path) -> Path:
    """A path with a person's folder in place of `~`, where the system knows one."""
    with contextlib.suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def place(path: str | Path) -> Path:
    """`path`, made absolute: a relative one is meant from `home()`.

    A Mac writes accents apart from their letters (NFD), Linux as one (NFC): the form that is there is taken.
    """
    path = home().absolute() / expanded(path)
    if str(path).isascii():
        return path
    forms = [path, *(Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD"))]
    return next((each for each in forms if each.exists()), path)


def data_place(root: str) -> str:
    """Where images are: a URL as it is, a path made absolute by `place`."""
    return root if "://" in root else str(place(root))


def portable(path: str) -> str:
    """A path inside the workspace as `./...`, which holds wherever the workspace lies; others as they are.

    Example:
        >>> portable("/elsewhere/images"), portable("gs://bucket/images"), portable(str(home() / "images"))
        ('/elsewhere/images', 'gs://bucket/images', './images')
    """
    inside = _inside(Path(path), home()) if Path(path).is_absolute() else None
    return path if inside is None else f"./{inside.as_posix()}"


def located(path: str) -> str:
    """What `portable` made, as a path of this workspace; other names as they are."""
    return str(place(path[2:])) if path.startswith("./") else path


def local_home() -> Path | None:
    """The folder on fast local disk where runs are worked on; None where they are worked on in `home()`.

    Raises:
        ValueError: `QNNKIT_LOCAL` is not absolute, overlaps `QNNKIT_HOME`, or stands without it.
    """
    local, remote = _named("local"), _named("home")
    if local is None:
        return None
    one, other = _flat(local), _flat(remote or local)  # by name alone: a Drive that hangs must not hang this
    if not local.is_absolute() or one.is_relative_to(other) or other.is_relative_to(one):
        rule = "be an absolute path outside QNNKIT_HOME, which must be set too"
        step = f"QNNKIT_HOME is {remote or 'not set'}. Choose a folder on local disk, or unset it."
        raise ValueError(checks.message("QNNKIT_LOCAL", rule, str(local), step))
    return local


def run_folder(run_dir: str | Path) -> Path:
    """The folder that a run is written to: `place(run_dir)`, or its local copy in `QNNKIT_LOCAL`.

    Raises:
        FileNotFoundError: `QNNKIT_LOCAL` is set but `QNNKIT_HOME` is not there: Drive is not mounted, and a
            run that has begun there must not be begun again here.
    """
    path, local = place(run_dir), local_home()
    require_mounted(path)
    inside = _inside(path, home()) if local else None
    if local is None or inside is None:
        return path
    checks.folder("QNNKIT_HOME", home(), "Mount Drive, or make the folder.")
    return local / inside


def remote_of(local: Path) -> Path | None:
    """Where the folder `local` is mirrored to; None where it is not. Asks nothing of `QNNKIT_HOME` itself."""
    root = local_home()
    inside = _inside(local, root) if root else None
    return home().absolute() / inside if inside else None


def _inside(path: Path, folder: Path) -> Path | None:
    """`path` as seen from `folder`, if it lies below it, by name or behind links."""
    for here, there in ((_flat(path), _flat(folder)), (path.resolve(), folder.resolve())):
        if there in here.parents:
            return here.relative_to(there)
    return None


def _flat(path: Path) -> Path:
    """An absolute path without `..`, as it is written: no link is followed."""
    return Path(os.path.normpath(path.absolute()))


# --- files --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, an OSError says what could not be written, why, and the next step; as where Drive is away."""
    require_mounted(path)
    try:
        yield
    except OSError as error:
        if not error.errno or str(error.strerror).startswith("Cannot write"):  # has its sentence
            raise
        step = "Free some space" if error.errno in FULL else "Choose a folder that you may write to"
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            step = "A file is in its place: choose another name"
        why = f"Cannot write `{path}` ({error.strerror}). {step} and run the same command again; what was "
        raise type(error)(error.errno, f"{why}written before is whole.") from None


def make_folder(path: Path) -> Path:
    """`path`, made if missing; raises OSError if nothing can be written there (tested by writing)."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def draft_of(path: Path) -> Path:
    """Where a file is written until it is whole: next to `path`, under a name that nobody else has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file at `path` in one step; a kill or a full disk leaves the old one whole.

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
    """As `write_bytes`, for plain values."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Adds one JSON line in place of half a line that a kill or a full disk has left.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with writing(path), path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":  # which is rare
            file.seek(0)
            file.truncate(file.read(end).rfind(b"\n") + 1)
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def parse_lines(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole lines that are rows, and how many are not."""
    lines = [line for line in content.split(b"\n")[:-1] if line]  # what follows the last is not whole
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict)]
    return rows, len(lines) - len(rows)


def read_json(path: Path, kinds: Mapping[str, Any] | None = None) -> Any:
    """The plain values in a file; None if it is missing.

    Args:
        path: Of the file.
        kinds: Of what kind its values are, by name, as far as it has them: with this it must hold names.

    Raises:
        ValueError: It is damaged.
    """
    try:
        values = json.loads(path.read_bytes())
        for name, kind in (kinds or {}).items():
            if not isinstance(values, dict) or (name in values and not isinstance(values[name], kind)):
                raise ValueError(f"its `{name}` is of another kind")
        return values
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(
            f"File `{path}` is damaged ({error}). Put it back from a copy, or delete it and run the same "
            "command again."
        ) from None


@contextlib.contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """A hidden folder next to `folder`, which takes its place in the end; nothing is left of it otherwise.

    One call at a time writes a folder. What lies there from before is replaced if it has no file that the
    new one has not. What a kill has left goes with the next call.

    Raises:
        FileExistsError: Something else is there.
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
        before = [path.name for path in folder.iterdir()] if folder.exists() else []
        if others := [name for name in before if not (draft / name).exists()]:
            step = f"It holds {others[0]} too: choose another name."
            rule = "be absent, empty or of an earlier save"
            raise FileExistsError(checks.message("folder", rule, str(folder), step))
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
