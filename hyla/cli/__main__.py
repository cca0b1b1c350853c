"""`python -m hyla.cli`, the same as the command `hyla`."""

from hyla.cli import main

main()
