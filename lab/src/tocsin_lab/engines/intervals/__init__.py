"""What `fastint` and `tama` share: conjunctions as rows of intervals, in slots."""
