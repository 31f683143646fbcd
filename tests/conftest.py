"""Set up before anything of Tocsin is imported: a clean Numba cache, and Hypothesis profiles.

Numba's cache does not notice an edit in a helper that a cached kernel calls, so each run compiles
afresh. `HYPOTHESIS_PROFILE=explore` looks for new counterexamples instead of the same every time.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

_numba_cache = tempfile.mkdtemp(prefix="tocsin-numba-")
os.environ["NUMBA_CACHE_DIR"] = _numba_cache
atexit.register(shutil.rmtree, _numba_cache, ignore_errors=True)

_patient = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "steady",
    max_examples=60,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=_patient,
)
settings.register_profile(
    "explore", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=_patient
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
