"""Covers of many subscriptions, for routing and pruning.

A *summary* of a set of subscriptions admits every event that one of them matches. `Summary` is the
approximate grade (one set of values an attribute), and `LiveSummary` keeps one while subscriptions
come and go. `CoverForest` is the exact grade: the conjunctions that no other covers. Jayaram et al.
(Beretta), sections 2.4, 5.4 and 5.6.
"""

from __future__ import annotations

from tocsin.summary.forest import CoverForest
from tocsin.summary.live import LiveSummary
from tocsin.summary.summaries import Summary

__all__ = ["CoverForest", "LiveSummary", "Summary"]
