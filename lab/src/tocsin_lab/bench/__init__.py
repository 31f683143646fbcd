"""Benchmarks: seeded, checked against the one-by-one path before they time anything.

`parse`, `match`, `latency`, `scale`, `churn` and `adapt` each have a function `run` that returns a
dictionary ready for JSON, with the machine and the versions it was measured on, and a function
`render` that makes a table of it; the other modules are what they share. The command line is in
`tocsin.cli`.
"""
