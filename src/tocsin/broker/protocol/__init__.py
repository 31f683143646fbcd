"""Codecs of the wire formats, without sockets, clocks or state of the broker."""
