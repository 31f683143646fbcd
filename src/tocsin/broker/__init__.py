"""The broker: publishers, subscribers, and a durable server between them.

Enters: events and subscriptions over HTTP, WebSocket and STOMP. Leaves: notifications, each to the
subscriber whose condition its event makes true. After the notification service of Fabret et al.
(seed 001, section 1): subscriptions are matched with events as these come; delivery, storage and
rights are ours.

One event's way::

    protocol/*    bytes → frames, CloudEvents, JSON         sans-IO: no sockets, no clock
    http/, stomp  a request or a frame → `Event`s            rights and limits are checked here
    core          events of all connections → micro-batches → matches → fan-out
    past, topics  a batch meets the matchers of its types; publications bring about transitions
    idempotency   a publish that is repeated under its key → the receipt of the first
    fan_out       matches and transitions → outboxes and rows
    storage       what durable subscribers must get → SQLite, group commit
    sessions      bounded outboxes, one for each connection
    durable       unacknowledged notifications → the one session that reads them, once or again
    backlogs      acknowledgements, dead letters
    webhooks      the same, pushed by HTTP requests

**Batches.** A publish joins a queue. One task takes all that waits (at most `batch_events`), has it
matched in a thread, and fans out; while it matches, the next batch gathers. So batches are small
when little happens and large under load, and no timer delays an event. A full queue makes
publishers wait: an HTTP request is answered later, a STOMP connection is read no further.

**Guarantees.** A subscription is transient or durable. A transient one gets a notification at most
once, while somebody listens. A durable one gets it at least once: the event and one row for each
durable match are on disk, synchronised, before the publisher's acknowledgement; a row goes when the
subscriber acknowledges it. What may have been delivered before is marked `redelivered`. What is
refused, or sent too often, becomes a dead letter, which may be revived under a new number.
Notifications of a subscription come in the order of their ids, which are event numbers that never
come again, not even after a crash.

**Slow consumers.** An outbox is bounded by messages and bytes. A transient subscriber that does not
keep up loses the oldest that waits, and is told how many so far (`missed`); or, where configured
so, its connection is closed. A durable one loses nothing: when its outbox or its window of
unacknowledged notifications is full, delivery stops and is resumed from disk. Its backlog on disk
is bounded too (`max_backlog`): beyond, the oldest is dropped and counted as missed, or, where the
subscription says `"overflow": "refuse"`, the publish is refused.

**Storage.** SQLite in WAL mode: one file that is copied, inspected and repaired with tools that
everybody has, transactions across tables, and a C implementation that does not hold Python's lock
while it waits for the disk. One thread writes; all that waits when it begins is one transaction, so
the cost of a synchronisation is shared. An event is stored once, whatever the number of durable
subscribers it matches, and only when there is one. Transient subscriptions of a STOMP or WebSocket
connection are never stored; those made over HTTP are, so that they outlive a restart.

**The past.** A publication has a key and stays (`keyed`, `past`): what it says now is kept in
memory and in the database. Who asks for transitions is told when it begins or ceases to match: the
values before and after meet the matchers of such subscriptions, and what differs is told. Batches
follow each other, and one that changes publications is on disk before the next is matched; a
subscription that must find what is there already takes its place among them (`Broker.in_order`). So
the publications, the transitions told and the subscriptions they were told to are always of one
moment, on disk too. Events may be retained for a time, for subscriptions that come later.

**Several brokers.** `network.py` is the seam, `overlay/` what is behind it.
"""

from __future__ import annotations
