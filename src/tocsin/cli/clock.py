"""When the command line began, for the whole time of a command. It is imported before all else."""

from __future__ import annotations

import time

STARTED = time.perf_counter()
