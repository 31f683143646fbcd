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
C    `turnover`          ours: quotes, ``lower(firm) = 'f012' AND price * volume BETWEEN …``
CA   `turnover`          the same on attributes: ``symbol = 'f012' AND turnover BETWEEN …``
L    `tags`              ours: events with 12 tags, conjunctions of ``ANY(tags) = 'tag00123'``
X    `searches`          ours: documents of 40 words, ``matches(body, 'two to four words')``
R    `targets`           ours: quotes, ``firm = 'F012' AND abs(price - 101.25) < 0.02``
P    `circles`           ours: positions, ``distance(lat, lon, 50.12345, 8.54321) < 2500``
==== =================== ====================================================================

They are found through `tocsin.workloads`, where `M`, the market of the demonstrations, is.

>>> W0.subscription_texts(1)["where"][0].as_py()
'a0 = 33 AND a1 = 7 AND a20 = 23 AND a21 = 18 AND a17 = 5'
"""

from __future__ import annotations

from tocsin_lab.workloads.circles import Circles
from tocsin_lab.workloads.equalities import Equalities
from tocsin_lab.workloads.highway import Highway
from tocsin_lab.workloads.popularity import Popularity
from tocsin_lab.workloads.ranges import Ranges
from tocsin_lab.workloads.searches import Searches
from tocsin_lab.workloads.tags import Tags
from tocsin_lab.workloads.targets import Targets
from tocsin_lab.workloads.titles import Titles
from tocsin_lab.workloads.turnover import Turnover
from tocsin_lab.workloads.written import Written

__all__ = [
    "Circles",
    "Equalities",
    "Highway",
    "Popularity",
    "Ranges",
    "Searches",
    "Tags",
    "Targets",
    "Titles",
    "Turnover",
    "Written",
]

W0 = Equalities("W0", equal=(0, 1), n_free=3)
W1 = Equalities("W1", equal=(0, 1), greater=(2,), n_free=1)
W2 = Equalities("W2", equal=(0, 1), less=(2, 3, 4, 5, 6), greater=(7,), n_free=1)
T = Ranges("T", n_attributes=1000, n_present=100, n_ranges=10, width=0.01)
TW = Ranges("TW", n_attributes=20, n_present=20, n_ranges=5, width=0.3, ascending=True)
G = Popularity("G")
H = Highway("H")
K = Titles("K")
C = Turnover("C")
CA = Turnover("CA", is_computed=False)
L = Tags("L")
X = Searches("X")
R = Targets("R")
P = Circles("P")
