"""Benchmarks: seeded, checked against the one-by-one path before they time anything.

Each module has one function `run` that returns a dictionary ready for JSON, with the machine and
the versions it was measured on. The command line is in `tocsin.cli`.
"""
