"""The catalog of subscriptions: their ids, conditions and expiries.

`ids` holds columns of ids and `sources` conditions; `blocks` keeps both in the order of dense ids,
and `live_blocks` marks the live subscriptions. `id_index` maps ids to dense ids, `expiry` returns
the subscriptions that have expired. `records` and `listing` are for reading back, `serialization`
writes and opens a catalog in parts, and `subscriptions` is the catalog itself.
"""
