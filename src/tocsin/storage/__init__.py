"""Files under numbered manifests: named arrays and columns in, memory-mapped files out.

`place` is the one interface to file systems: `local` over the calls of `disk`, `remote` over
fsspec, and `tocsin.spark.hadoop` over Spark's Hadoop. `columns` turns Arrow columns into arrays;
`container` writes arrays to one file, with checksums; `folder` commits such files as versions under
`manifests`, which are created exclusively; `pins` hold versions for readers. docs/store.md
specifies the format.
"""
