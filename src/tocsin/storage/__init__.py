"""Files under numbered manifests: named arrays and columns in, a folder of memory-mapped files out.

`disk` and `place` write and read files (local, fsspec), `columns` turns Arrow columns into arrays,
`container` keeps arrays in one file with checksums, `folder` commits such files under manifests
that are created exclusively, `pins` holds versions for readers. docs/store.md specifies the format.
"""
