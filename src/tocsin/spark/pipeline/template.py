"""The configuration that `tocsin pipeline init` writes: every key with its default."""

from __future__ import annotations

import os
from pathlib import Path

from tocsin.errors import PipelineError

TEMPLATE = """\
# A Tocsin pipeline: events in, notifications out. See docs/pipeline.md.
# Relative paths are taken from the folder of this file. Where Spark reads and writes, a path may be
# a URL that Hadoop knows (hdfs://, s3a://).

[pipeline]
name = "quotes"
subscriptions = "subscriptions"   # a subscription store: tocsin subscriptions add ...
output = "output"                 # tables of notifications, quarantine and metrics
# checkpoint = "output/checkpoint"  # the progress of the query; keep it
# mode = "matches"                # or transitions: matches that begin and cease, see below
# trigger = "2 seconds"           # the time between micro-batches; "once": all events, then stop
# retain = 100                    # the number of batches whose versions the store retains

# The attributes of events: integer, float, string, boolean, timestamp. JSON, CSV, Kafka need them.
# Rows that do not fit go to output/quarantine, with the reason and the original.
[event]
name = "Quote"
# required = ["firm"]             # events without these are quarantined too
[event.attributes]
firm = "string"
price = "float"
volume = "integer"

# Files: each new file in the folder is read once. Move files there whole, by renaming them.
[source]
format = "json"                   # json, csv or parquet; kafka; generated; frame (from Python)
path = "events"
# batch_files = 100               # the maximum number of files in a micro-batch
# columns = ["firm", "price"]     # csv: files without a header line
# delimiter = ","                 # csv

# Kafka: the value of a record is an event in JSON. Spark needs the connector's package, see below.
# [source]
# format = "kafka"
# servers = "localhost:9092"
# topic = "quotes"
# start = "earliest"              # or latest: where a new query begins
# batch_events = 100000           # the maximum number of events in a micro-batch
# [source.options]                # options of Spark's Kafka source

# Generated events, for trials.
# [source]
# format = "generated"
# workload = "M"                  # W0, W1, W2, T, TW, M or G
# batch_events = 10000
# events = 0                      # the total, after which it stops; 0: no limit
# seed = 0

[match]
# keep = ["firm", "price"]        # the event columns of notifications; default: all
# output = "rows"                 # a row for each match; arrays: a row for each event
# unmatched = false               # true: events without a match go to output/unmatched
# placement = "auto"              # auto, replicated or partitioned, see docs/spark.md

# For pipeline.mode = "transitions", instead of [match]: an event holds the current values of a
# publication. Notifications have its key, the subscription, and ENTER or LEAVE.
# [transitions]
# key = "firm"                    # the attribute of the key; needed
# order = "time"                  # the attribute that orders several updates in a batch
# retract = "gone"                # a boolean attribute: true ends the publication
# ttl = "1 hour"                  # the time without an update after which it ends; default: none
# partial = false                 # true: an absent attribute keeps its value
# buckets = 16                    # a few for each core; cannot be changed later

# Any number of sinks. Each gets every notification, once.
[[sinks]]
kind = "parquet"                  # parquet, delta, kafka or console
# path = "output/notifications"

# [[sinks]]
# kind = "kafka"
# servers = "localhost:9092"
# topic = "notifications"
# key = "subscription"            # the column that becomes the record's key

# A sample of events is kept in output/statistics, for planning the next index.
[statistics]
# sample = 20000
# every = "30 seconds"

[spark]
# master = "local[*]"
[spark.conf]
# "spark.jars.packages" = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
"""


def write_template(path: str | os.PathLike[str]) -> Path:
    """Write a commented configuration to a file that does not exist yet."""
    target = Path(path)
    try:
        with target.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise PipelineError(f"{target} exists already") from None
    except OSError as error:
        raise PipelineError(f"{target}: {error.strerror}") from None
    return target
