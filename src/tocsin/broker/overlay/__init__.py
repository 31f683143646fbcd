"""The broker network: several brokers route events only where somebody wants them.

One event's way through the network::

    router.py     what peers interest → the peers that get the event   pure; no clock, no IO
      table.py      the wants of all links, ready for events
    hub.py        the router of a running broker: its subscriptions, its links, its queues
    wire.py       one connection to a peer: handshake, messages, acknowledgements
    dialing.py    links that this broker opens, again and again

And what is wanted, the other way: `grades.py` gathers it for each link, `forms.py` says what
changed, `links.py` keeps what was said, `graph.py` makes a tree of any links, `messages.py` has the
words and `fields.py` checks them. The laboratory's simulator runs many routers under a clock that
it makes up.

Jayaram et al. (Beretta), sections 2 and 5; Zhao and Wu (TAMA), section III, for the approximate
core. What the paper leaves open is ours: failures, redundant links, restarts, durability.
"""

from __future__ import annotations
