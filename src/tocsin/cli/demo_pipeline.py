"""x."""

from dataclasses import dataclass


@dataclass
class Demo:
    """x."""

    subscriptions: int
    seconds: float
    rate: int
    out: object
    seed: int
    as_json: bool


def run(x: Demo) -> int:
    """x."""
    return 0
