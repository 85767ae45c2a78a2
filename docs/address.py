"""Writes this repository's address into pyproject.toml, every badge and every cell that fetches code.

    make address REPO=owner/name
    make address                     # the address of the git remote `origin`

Until it is run, the badges are a sentence and the cells fetch nothing. A fork's owner runs it again.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPO = r"[A-Za-z0-9](?:[-_]?[A-Za-z0-9]){0,38}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}(?<!\.git)"
REMOTE = rf"(?:(?:https?|ssh|git)://)?(?:[^@/]+@)?github\.com[:/]({REPO})(?:\.git)?/?"
NO_BADGE = "No address yet: `make address REPO=owner/name` writes it into every badge and first cell."
BADGE = rf"{re.escape(NO_BADGE)}|\[!\[Open in Colab\][^\n\"\\]*"
CELL = r"\\\"[^\"\\]*\\\"(?=  # written by `make address`)"
URLS = r"(?<=^\[project\.urls\]\n)[^\n]*"


def rewritten(repo: str) -> dict[Path, str]:
    """The text of every file that holds the address, with that of `repo` (owner/name) in it."""
    colab = "https://colab.research.google.com"
    url = f"https://github.com/{repo}"
    notebooks = [ROOT / "colab_setup.ipynb", *sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    wanted = [(ROOT / "pyproject.toml", URLS, f'Repository = "{url}"')]
    for path in (ROOT / "README.md", *notebooks):
        opened = "colab_setup.ipynb" if path.suffix == ".md" else path.relative_to(ROOT).as_posix()
        link = f"{colab}/github/{repo}/blob/main/{opened}"
        wanted.append((path, BADGE, f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({link})"))
    wanted += [(path, CELL, rf"\"{url}\"") for path in notebooks]
    texts: dict[Path, str] = {}
    for path, place, new in wanted:
        text = texts.get(path) or path.read_text(encoding="utf-8")
        pieces = re.split(place, text, flags=re.MULTILINE)
        if len(pieces) != 2:
            raise SystemExit(
                f"`{path.name}` must hold one place for the address, but holds {len(pieces) - 1}. Nothing "
                f"was written; `git log -p {path.name}` shows what to bring back."
            )
        texts[path] = new.join(pieces)
    return texts


def origin() -> str:
    """The owner/name of the checkout's remote `origin`; empty where it is not on GitHub."""
    command = ["git", "--git-dir", str(ROOT / ".git"), "remote", "get-url", "origin"]
    remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(REMOTE, remote)
    return found[1] if found else ""


if __name__ == "__main__":
    given = "".join(sys.argv[1:]).strip()
    repo = given or origin()
    if not re.fullmatch(REPO, repo):
        says = f"is {given!r}" if given else "is empty, and the git remote `origin` is not on GitHub"
        raise SystemExit(f"REPO must be owner/name on GitHub, but {says}. Type: make address REPO=owner/name")
    for path, text in rewritten(repo).items():
        path.write_text(text, encoding="utf-8", newline="\n")
    print(f"The badges, cells and pyproject.toml name https://github.com/{repo} now. Commit and push them.")
