"""Routing of JSON lines: each event goes to the queues whose rule it meets."""

import io
import json

import tocsin

LINES = """\
{"service": "checkout", "level": "error", "status": 503, "duration_ms": 80}
{"service": "search", "level": "info", "status": 200, "duration_ms": 1900}
{"service": "search", "level": "info", "status": 200, "duration_ms": 12}
"""

routes = tocsin.Matcher()
routes.subscribe("on-call", "level = 'error' AND status >= 500")
routes.subscribe("slow", "duration_ms > 1000 OR service = 'checkout' AND duration_ms > 50")
routes.subscribe("audit", "service IN ('checkout', 'billing')")

events = [json.loads(line) for line in io.StringIO(LINES)]
queues: dict[str, list[int]] = {}
for number, ids in enumerate(routes.match_batch(events)):
    for id in ids:
        queues.setdefault(str(id), []).append(number)
for name in sorted(queues):
    print(f"{name}: events {queues[name]}")
