"""A process that works on a subject space until it is killed: `python -m tests.subjects.writer`.

What it is told by each call it appends to a file of its own, with the number of the call.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random

from tocsin.model import EventType
from tocsin.subjects.space import SubjectSpace

SPACE = EventType("Position", x=float, s=str)


def main(folder: str, seed: int) -> None:
    """Work until killed."""
    r = Random(seed)
    space = SubjectSpace.open(folder, SPACE)
    out = os.open(Path(folder).with_suffix(".told"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        key, id = r.randrange(30), f"s{r.randrange(20)}"
        action = r.random()
        if action < 0.4:
            found = space.publish(key, {"x": r.randrange(20), "s": r.choice("abc")})
        elif action < 0.6 and key in space.publications:
            found = space.update_publication(key, x=r.randrange(20))
        elif action < 0.65 and key in space.publications:
            found = space.retract(key)
        elif action < 0.7:
            x = [float(r.randrange(20)) for _ in range(6)]
            found = space.publish_many({"key": range(30, 36), "x": x})
        elif action < 0.72:
            space.compact()
            continue
        elif id in space._subscriptions.catalog:
            where = f"x > {r.randrange(20)}"
            found = space.update(id, where=where)
        else:
            found = space.subscribe(id, f"x < {r.randrange(20)} OR s = '{r.choice('abc')}'")
        told = [(t.kind.value, t.key, t.subscription) for t in found]
        os.write(out, (json.dumps([found.sequence, told]) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
