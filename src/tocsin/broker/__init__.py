"""The broker: a durable server between publishers and subscribers.

Enters: events and subscriptions over HTTP, WebSocket and STOMP. Leaves: notifications, each to a
subscriber whose condition the event makes true. After the notification service of Fabret et al.
(2001), section 1; delivery, storage and rights are ours.

An event's way in::

    protocol/        bytes → frames, CloudEvents, JSON       sans-IO: no sockets, no clock
    http/, stomp/    a request or a frame → `Event`s          rights and limits are checked here
    core             `Broker.publish`: idempotency → ingest queue
    ingest           publishes of all connections → batches
    batches          the loop: a batch → matching in a thread → delivery
    matching         a batch → numbers of subscriptions, transitions of publications
    delivery         matches → outboxes and rows, in one plan a batch; receipts
    sessions         bounded outboxes, one for each connection → the socket
    storage          rows → SQLite, group commit
    durable          unacknowledged notifications → the one session that reads them
    backlog          acknowledgements, dead letters
    webhooks         backlogs → HTTP requests

`core.Broker.__init__` wires the parts: each gets its collaborators as arguments and keeps them.
`registry` adds and changes subscriptions, `subscription` has the table of them, `publications` that
of publications and retained events, `numbers` the sequence numbers of events.

**Batches.** A publish joins the ingest queue. One task takes up to `batch_events` from it, has them
matched in a thread, and delivers; meanwhile the next batch gathers. So batches are small under low
load and large under high load, and no timer delays an event. A full queue makes publishers wait: an
HTTP request is answered later, a STOMP connection is not read.

**Guarantees.** A subscription is transient or durable. A transient one gets a notification at most
once, while a connection listens. A durable one gets it at least once: the event and one row for
each durable match are on disk, synchronised, before the publish is acknowledged; the row is deleted
when the subscriber acknowledges it. A notification that may have been delivered before is marked
`redelivered`. One that is refused, or was sent too often, becomes a dead letter, which may be
revived under a new number. Notifications of a subscription come in the order of their ids, which
are sequence numbers of events and never used twice, not even after a crash.

**Slow consumers.** An outbox is bounded by messages and bytes. A transient subscriber that does not
keep up loses its oldest messages, and `missed` counts them; or, by configuration, its connection is
closed. A durable one loses nothing: when its outbox or its window of unacknowledged notifications
is full, delivery stops and goes on from disk later. `max_backlog` bounds its backlog: beyond, the
oldest is dropped and counted as missed, or, with `"overflow": "refuse"`, the publish is refused.

**Storage.** SQLite in WAL mode: one file, transactions across tables, tools that everybody has, and
a C implementation that does not hold Python's lock while it waits for the disk. One thread writes;
all changes that wait when it begins are one transaction, so they share the cost of a sync. An event
is stored once, however many durable subscribers it has, and only if it has one. Transient
subscriptions of a STOMP or WebSocket connection are not stored; those made over HTTP are, so that
they survive a restart.

**Publications.** A publication has a key and stays until it is updated, retracted or expires. It is
in memory and in the database. A subscription with `notify` gets its transitions: the difference
between what it matched before and what it matches now. A batch that changes publications is on disk
before the next is matched; a subscription that needs what exists already runs as a job between two
batches (`IngestQueue.in_order`). So publications, transitions and subscriptions are consistent in
memory and on disk. Events may be retained for a time, for later subscriptions.

**Several brokers.** `network.py` is the seam, `overlay/` the implementation.
"""

from __future__ import annotations
