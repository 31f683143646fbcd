"""Values → cells: events by attribute, and the integer codes of values within a segment."""
