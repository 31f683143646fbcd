"""The Spark session of a pipeline, configured and with its log in a file.

Enters: the `spark` table of a configuration. Leaves: a session. An active one is used unchanged.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.errors import NoJavaError, PipelineError
from tocsin.spark.pipeline.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def has_java() -> bool:
    """Return whether Spark would find a Java runtime."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return True
    return shutil.which("java") is not None


def check_spark() -> None:
    """Raise an error that says what to install if Spark cannot run."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise PipelineError("PySpark is not installed: pip install 'tocsin[spark]'") from None
    if not has_java():
        raise NoJavaError(
            "Spark needs a Java runtime, version 17 or newer, and none was found: install one "
            "(on Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


def make_session(config: Config) -> SparkSession:
    """Return the active session, or start one."""
    check_spark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(config.master).appName(f"tocsin {config.name}")
    for key, value in {**_defaults(config), **config.spark}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _defaults(config: Config) -> dict[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.udf.pipelined.enabled": "true",
        # With a limit in bytes, Spark adds up the sizes of all columns for each row.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.python.daemon.module": "tocsin.spark.daemon",
    }
    if config.master.startswith("local"):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = "4"
    if "://" not in config.output:
        logging = _logging(Path(config.output) / "logs")
        # Spark searches long tracebacks with regular expressions that need a deep stack.
        settings["spark.driver.extraJavaOptions"] = f"-Xss8m {logging}"
    return settings


def _logging(folder: Path) -> str:
    """Configure Spark to log to a file; return the Java options for it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log4j2.properties"
    path.write_text(_LOGGING.format(file=folder / "spark.log"))
    return f"-Dlog4j2.configurationFile={path.as_uri()}"
