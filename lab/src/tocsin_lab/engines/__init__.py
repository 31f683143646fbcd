"""The published engines: which there are, and where.

==================== ======================== ====================================================
engine               package                  from
==================== ======================== ====================================================
counting             `clustering`             Fabret et al. (2000), section 2: hits are counted
propagation          `clustering`             the same: one equality leads to each subscription
propagation-prefetch `clustering`             the same, with prefetching
static               `clustering`             the same, section 3: clusters by several attributes
dynamic              `clustering`             the same, section 4: clusters that are maintained
tree                 `tree`                   Aguilera et al. (1999): a matching tree
tama                 `tama`                   Zhao and Wu (2011): approximate, hierarchical
fastint              `fastint`                Jayaram et al. (2010): segment trees by attribute
==================== ======================== ====================================================

`intervals` holds what `fastint` and `tama` share.
"""

from __future__ import annotations

from tocsin.engines import EngineSpec

_HERE = "tocsin_lab.engines"

counting = EngineSpec(f"{_HERE}.clustering.counting:CountingEngine")
propagation = EngineSpec(f"{_HERE}.clustering.propagation:PropagationEngine")
propagation_prefetch = EngineSpec(f"{_HERE}.clustering.propagation:PrefetchingPropagationEngine")
static = EngineSpec(f"{_HERE}.clustering.static:StaticEngine", {"max_bytes": int})
dynamic = EngineSpec(
    f"{_HERE}.clustering.dynamic:DynamicEngine",
    {"bm_max": float, "b_min": int, "rp_min": int, "s_min": float},
)
matching_tree = EngineSpec(f"{_HERE}.tree:make_tree", None)
tama_spec = EngineSpec(
    f"{_HERE}.tama:TamaEngine", {"false_positive_rate": float, "levels": int, "exact": bool}
)
fastint_spec = EngineSpec(f"{_HERE}.fastint:FastintEngine")
