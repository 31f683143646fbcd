"""Benchmarks: seeded, and checked against an independent evaluation before they are timed.

A benchmark is a module with a function `run`, which takes its setting (`settings`) and returns a
dictionary ready for JSON, with the machine and the versions it was measured on, and a function
`render`, which makes a table of it. The other modules are shared. The commands are generated from
the settings, in `tocsin_lab.cli`.
"""
