"""`python -m qnnkit` is the `qnnkit` command."""

from qnnkit.cli import main

main()
