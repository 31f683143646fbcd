"""The papers' workloads, and ours that only measurements use.

==== =================== ====================================================================
name module              from
==== =================== ====================================================================
W0   `equalities`        Fabret et al., section 6.2.1: 5 equalities, 2 of them on fixed names
W1   `equalities`        the same: 4 predicates, one of them ``>``
W2   `equalities`        the same: 9 predicates, five ``<`` and one ``>``
T    `ranges`            Zhao and Wu (TAMA), section V: 10 narrow ranges over 1,000 attributes
TW   `ranges`            ours: few attributes, wide ranges, many matches
G    `popularity`        Aguilera et al., section "Discussion": attributes of decaying popularity
H    `highway`           ours, after Jayaram et al. (Beretta), section 6: drivers watch the road
K    `titles`            ours: titles of 60 characters, ``title LIKE '%word%'``
==== =================== ====================================================================

They are found through `tocsin.workloads`, where `M`, the market of the demonstrations, is.

>>> W0.subscription_texts(1)["where"][0].as_py()
'a0 = 33 AND a1 = 7 AND a20 = 23 AND a21 = 18 AND a17 = 5'
"""

from __future__ import annotations

from tocsin_lab.workloads.equalities import Equalities
from tocsin_lab.workloads.highway import Highway
from tocsin_lab.workloads.popularity import Popularity
from tocsin_lab.workloads.ranges import Ranges
from tocsin_lab.workloads.titles import Titles

__all__ = ["Equalities", "Highway", "Popularity", "Ranges", "Titles"]

W0 = Equalities("W0", equal=(0, 1), n_free=3)
W1 = Equalities("W1", equal=(0, 1), greater=(2,), n_free=1)
W2 = Equalities("W2", equal=(0, 1), less=(2, 3, 4, 5, 6), greater=(7,), n_free=1)
T = Ranges("T", n_attributes=1000, n_present=100, n_ranges=10, width=0.01)
TW = Ranges("TW", n_attributes=20, n_present=20, n_ranges=5, width=0.3, ascending=True)
G = Popularity("G")
H = Highway("H")
K = Titles("K")
