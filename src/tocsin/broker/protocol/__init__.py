"""What is on the wire: codecs without sockets, clocks or state of the broker."""
