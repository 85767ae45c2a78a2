"""What `make bench` runs: the same workloads on qnnkit and on its peers. No part of the package."""

from pathlib import Path


def recipe(name: str) -> str:
    """What `recipes.find` takes for a name: the file of benchmarks/recipes, or the name of a shipped one."""
    own = Path(__file__).parent / "recipes" / f"{name}.py"
    return str(own) if own.is_file() else name
