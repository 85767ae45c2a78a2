"""The programs of `make bench`: the same workloads on qnnkit and on its peers. Not part of the package."""

from pathlib import Path


def recipe(name: str) -> str:
    """The argument of `recipes.find` for a name: a file of benchmarks/recipes, or a shipped recipe's name."""
    path = Path(__file__).parent / "recipes" / f"{name}.py"
    return str(path) if path.is_file() else name
