"""The catalog of subscriptions: their ids, conditions and ends.

`ids` holds columns of ids and `sources` conditions; `blocks` keeps both in the order of dense ids,
and `live_blocks` marks those that are live. `id_index` leads from ids to dense ids, `expiry` says
which subscriptions are due. `records` and `listing` are for reading back, and `serialization`
writes a catalog in parts and opens it again. `subscriptions` is the catalog itself.
"""
