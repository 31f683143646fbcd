"""Geofences: notified when a truck enters or leaves a zone, not at each position report."""

import tocsin

trucks = tocsin.SubjectSpace(tocsin.EventType("Position", x=float, y=float, cold=bool))
trucks.subscribe("harbour", "x BETWEEN 0 AND 10 AND y BETWEEN 0 AND 10")
trucks.subscribe("cold chain", "cold AND x BETWEEN 5 AND 30 AND y BETWEEN 0 AND 10")

trucks.publish("truck 7", {"x": 40.0, "y": 5.0, "cold": True})
for x in (25.0, 8.0, 7.0, 3.0, -2.0):
    for transition in trucks.update_publication("truck 7", x=x):
        print(f"at x = {x}: {transition.kind.value} {transition.subscription}")
