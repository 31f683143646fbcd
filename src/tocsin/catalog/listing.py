"""All subscriptions of a catalog at one moment, as ids or as a table.

Enters: the blocks of a catalog, with the places in each that are live. Leaves: an iterator over
ids, and the table that `to_table` returns. Blocks are immutable, so that both can be produced
without the lock of the matcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import INT64
from tocsin.catalog.blocks import NEVER, Block
from tocsin.catalog.records import UNTIL, to_columns, with_dialects

_CHUNK = 65_536
_COLUMNS = ("id", "where", "params", "valid_until")


class Listing:
    """Blocks with their live places."""

    def __init__(self, parts: Sequence[tuple[Block, NDArray[np.int64]]]) -> None:
        self._parts = [(block, places) for block, places in parts if len(places)]

    def ids(self) -> Iterator[str | int]:
        """Iterate over the ids, in the order in which they were registered."""
        for block, places in self._chunks():
            yield from block.ids.take(places).to_list()

    def to_table(self) -> pa.Table:
        """Return columns `id`, `where`, `params` and `valid_until`; perhaps `dialect`."""
        are_numbers = all(block.ids.texts is None for block, _ in self._parts) and self._parts
        id_type = INT64 if are_numbers else pa.large_string()
        schema = pa.schema(
            zip(_COLUMNS, (id_type, pa.large_string(), pa.large_string(), UNTIL), strict=True)
        )
        return with_dialects(
            pa.Table.from_batches(
                [self._batch(block, places, schema) for block, places in self._chunks()], schema
            )
        )

    def _chunks(self) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        for block, places in self._parts:
            for first in range(0, len(places), _CHUNK):
                yield block, places[first : first + _CHUNK]

    @staticmethod
    def _batch(block: Block, places: NDArray[np.int64], schema: pa.Schema) -> pa.RecordBatch:
        ids = block.ids.take(places)
        column = pa.array(ids.numbers) if schema.field(0).type == INT64 else ids.to_texts()
        rows = places if block.rows is None else block.rows[places]
        texts, params = to_columns(block.source, rows)
        if block.until is None:
            ends = pa.nulls(len(places), UNTIL)
        else:
            until = block.until[places]
            ends = pa.array(until, mask=until == NEVER).cast(UNTIL)
        return pa.RecordBatch.from_arrays([column, texts, params, ends], schema=schema)
