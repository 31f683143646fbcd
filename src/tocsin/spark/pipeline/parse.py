"""Parse: the third pass turns lines into columns of the declared kinds.

Enters: frames of lines. Leaves: a frame for each, with a column for each declared attribute, and
marks on lines that are not an event. Spark's tasks run it (`lines`), in the job of a later pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tocsin.spark.columns import quoted
from tocsin.spark.pipeline.batch import Batch, Frames, Lines
from tocsin.spark.pipeline.lines import MARKS, TEXT, parser
from tocsin.spark.pipeline.validate import SQL_TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parse(batch: Batch, frames: Frames) -> Frames:
    """Return the frames with parsed lines; declared columns that a file lacks are drift."""
    with batch.stage("parse"):
        parsed = tuple(map(_parse, frames.lines))
        missing = [
            f"column {name!r} is missing: absent in every event"
            for lines in frames.lines
            for name in lines.form.event_type.attributes
            if lines.form.columns and name not in lines.form.columns
        ]
        return replace(frames, parsed=parsed, drift=tuple(dict.fromkeys(missing)))


def _parse(lines: Lines) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    attributes = lines.form.event_type.attributes.items()
    typed = ", ".join(f"{quoted(name)} {SQL_TYPES[kind]}" for name, kind in attributes)
    marks = ", ".join(f"{name} string" for name in MARKS)
    carried = [
        StructField(each.name, each.dataType) for each in lines.frame.schema if each.name != TEXT
    ]
    schema = StructType([*_fields(typed), *carried, *_fields(marks)])
    return lines.frame.mapInArrow(parser(lines.form), schema)


def _fields(ddl: str) -> list[Any]:
    """Return the fields of a declaration like `a string, b double`."""
    from pyspark.sql.types import StructType

    declared: Any = StructType.fromDDL(ddl)
    return list(declared.fields)
