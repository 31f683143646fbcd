"""The engines of Fabret et al., "Efficient Matching Algorithms for Publish and Subscribe Systems".

INRIA research report RR-4089, 2000. All of them test predicates first and conjunctions second
(section 2). What they share:

- `predicates.py`: distinct conditions ↔ numbered predicates, counted by use.
- `index.py`: events → the predicates they satisfy.
- `engine.py`: what every engine does with conjunctions, around its own second phase.
- `clusters.py`: columnar clusters under access predicates, and hash tables that find them.
- `groups.py`, `costs.py`: schemas that tables may have; what a clustering costs.

The engines are `counting.py`, `propagation.py`, `static.py` and `dynamic.py`.
"""
