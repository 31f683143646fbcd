"""The subscription store: parts in, a folder of files that are mapped into memory out.

`columns` turns Arrow columns into arrays, `container` keeps arrays in one file with checksums,
`folder` keeps such files in a folder under a manifest that is swapped at once. None of them knows
what the parts mean. docs/store.md specifies the format.
"""
