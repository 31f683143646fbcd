"""The network of brokers: events are routed only to brokers with matching subscriptions.

One event's way through the network::

    router.py     interests of peers → the peers that get an event   pure; no clock, no IO
      table.py      the interests of all links, indexed for events
    hub.py        the router of a running broker: its subscriptions, links and queues
    wire.py       one connection to a peer: handshake, messages, acknowledgements
    dialer.py     opens links, and reconnects them

Interests travel the other way: `grades.py` aggregates them for each link, `forms.py` computes
differences, `links.py` has the state of each link, `graph.py` derives a spanning tree,
`messages.py` is the protocol and `fields.py` checks it. The laboratory's simulator runs many
routers under a simulated clock.

Jayaram et al. (Beretta), sections 2 and 5; Zhao and Wu (TAMA), section III, for the approximate
core. What the paper leaves open is ours: failures, redundant links, restarts, durability.
"""

from __future__ import annotations
