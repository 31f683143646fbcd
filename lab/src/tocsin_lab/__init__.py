"""The laboratory: the published algorithms as engines, and what measures and compares them.

Installed beside Tocsin, it adds engines to `tocsin.Matcher(engine=…)`, workloads to
`tocsin.workloads`, and the commands `tocsin bench` and `tocsin report`. Tocsin imports none of it:
everything is found by entry points.
"""

from __future__ import annotations
