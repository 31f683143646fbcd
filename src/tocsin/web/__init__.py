"""The console: plain files that a broker serves at `/`; no build step, nothing fetched from afar.

Enters: what the HTTP interface of the broker gives. Leaves: a page with charts, subscriptions, a
form to try conditions, a form to publish, and notifications as they come.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "static"
