"""The process that Spark forks Python workers from, with Tocsin imported already.

Enters: `spark.python.daemon.module=tocsin.spark.daemon` in the settings of a session. Leaves:
workers that share the memory of all modules with the process they were forked from, and that need
not import them first. It does what `pyspark.daemon` does; to use it is a choice.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Import what workers need, and serve as PySpark's own daemon does."""
    import pyspark.worker  # noqa: F401 - so that workers find it there

    import tocsin.spark.routes  # noqa: F401

    gc.collect()
    gc.freeze()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
