"""Writes docs/house.md: the parts of the package, from their docstrings and import statements.

python docs/house.py
"""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "qnnkit"
PAGE = ROOT / "docs" / "house.md"
HEAD = """# The house

Every part of `qnnkit` and its job, from the bottom up. A part imports only parts of lower floors;
`make lint` holds that order (import-linter). `python docs/house.py` writes this page from the code's
own import statements and docstrings.

| floor | part | job | imports |
|---|---|---|---|
"""


def parts() -> dict[str, list[Path]]:
    """The files of each part: a module beside `__init__.py`, or a folder."""
    found = {}
    for path in sorted(PACKAGE.iterdir()):
        if (path / "__init__.py").exists():
            found[path.name] = sorted(path.rglob("*.py"))  # __init__.py first
        elif path.suffix == ".py" and not path.stem.startswith("__"):
            found[path.stem] = [path]
    return found


def imports(paths: list[Path], names: set[str]) -> set[str]:
    """Which parts among `names` the files import, those inside functions included."""
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    dotted = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            dotted |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in dotted if name.startswith("qnnkit.")} & names


def page() -> str:
    """docs/house.md, as the code is now."""
    found = parts()
    below = {name: imports(paths, set(found)) - {name} for name, paths in found.items()}

    @functools.cache
    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=-1)

    rows = []
    for name in sorted(found, key=lambda name: (floor(name), name)):
        text = found[name][0].read_text(encoding="utf-8")
        job = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
        rows.append(f"| {floor(name)} | `{name}` | {job} | {', '.join(sorted(below[name]))} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
