"""The process that Spark forks Python workers from, with Tocsin already imported.

Enters: `spark.python.daemon.module=tocsin.spark.daemon` in the settings of a session. Leaves:
workers that start without imports and share the memory of all modules with the process they were
forked from. It does what `pyspark.daemon` does, and is optional.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Import what workers need, and serve as PySpark's own daemon does."""
    import pyspark.worker  # noqa: F401 - workers find it imported

    import tocsin.spark.routes  # noqa: F401

    gc.collect()
    gc.freeze()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
