"""The laboratory: the published algorithms as engines, and what measures and compares them.

Installed with Tocsin, it adds engines to `tocsin.Matcher(engine=…)`, workloads to
`tocsin.workloads`, and the commands `tocsin bench` and `tocsin report`. Tocsin imports none of it:
it is loaded through entry points.
"""

from __future__ import annotations
