"""`python -m tocsin.cli` is `tocsin`."""

from tocsin.cli import main

main()
