"""The configuration that `tocsin pipeline init` writes: every key, with its default, explained."""

TEMPLATE = """\
# A Tocsin pipeline: events in, notifications out. See docs/pipeline.md.
# Relative paths are taken from the folder of this file. Where Spark reads and writes, a path may be
# a URL that Hadoop knows (hdfs://, s3a://).

[pipeline]
name = "quotes"
subscriptions = "subscriptions"   # a subscription store: tocsin subscriptions add ...
output = "output"                 # tables of notifications, quarantine and metrics
# checkpoint = "output/checkpoint"  # how far the query has come; keep it
# mode = "matches"                # every match; or transitions: what begins and ceases, see below
# trigger = "2 seconds"           # the time between micro-batches; "once": all there is, then stop

# retain = 100                    # for so many batches the version they used is kept in the store

# What events are made of: integer, float, string, boolean, timestamp. JSON, CSV, Kafka need it.
# Events that do not fit go to output/quarantine, with the reason and the original.
[event]
name = "Quote"
# required = ["firm"]             # events without these are set aside too
[event.attributes]
firm = "string"
price = "float"
volume = "integer"

# Files: each file that appears in the folder is read once. Put files there whole, by renaming them.
[source]
format = "json"                   # json, csv or parquet; kafka; generated; frame (from Python)
path = "events"
# batch_files = 100               # at most so many files in a micro-batch
# columns = ["firm", "price"]     # csv: files without a header line
# delimiter = ","                 # csv

# Kafka: the value of a record is an event in JSON. Spark needs the connector's package, see below.
# [source]
# format = "kafka"
# servers = "localhost:9092"
# topic = "quotes"
# start = "earliest"              # or latest: where a new query begins
# batch_events = 100000           # at most so many events in a micro-batch
# [source.options]                # handed to Spark's Kafka source as they are

# Generated events, for trying things out.
# [source]
# format = "generated"
# workload = "M"                  # W0, W1, W2, T, TW, M or G
# batch_events = 10000
# events = 0                      # stop after so many; 0: never
# seed = 0

[match]
# keep = ["firm", "price"]        # the columns of events that notifications have; default: all
# output = "rows"                 # a row a match; or arrays: a row an event, with all its matches
# unmatched = false               # true: events that match nothing go to output/unmatched
# placement = "auto"              # auto, replicated or partitioned, see docs/spark.md

# For pipeline.mode = "transitions", instead of [match]: an event holds the current values of a
# publication. Notifications have its key, the subscription, and ENTER or LEAVE.
# [transitions]
# key = "firm"                    # the attribute that says which publication; needed
# order = "time"                  # which of several updates in a batch comes first
# retract = "gone"                # a boolean attribute: true ends the publication
# ttl = "1 hour"                  # without an update for so long it ends; default: never
# partial = false                 # true: an absent attribute stays as it was
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
