"""One file of parts: facts, arrays and columns, with checksums.

Enters: parts. Leaves: a file that never changes again; and from it, mapped into memory, the parts.
Its first 64 bytes are the same in all versions: magic, version, the lengths of header and file, the
header's checksum, and their own. Then the header, which is JSON, and the arrays, each at a multiple
of 64 bytes, with a CRC-32 for each 16 MiB of them. Nothing in it is ever executed.

Arrays are mapped copy-on-write: kernels are compiled for arrays that can be written to, and a
read-only array would be another compilation of each of them. The file is never written to.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.errors import DamagedStoreError, NewerStoreError, StoreError
from tocsin.storage import disk
from tocsin.storage.columns import read_column, write_column

MAGIC = b"\x89TOCSIN\n"
VERSION = 1
_ALIGNMENT = 64
_CHUNK = 1 << 24
_PREFIX = struct.Struct("<8sIIQQI")
"""Magic, version, CRC-32 of the header, bytes of the header, bytes of the file, CRC-32 of these."""
_TYPES = frozenset(f"<{kind}" for kind in "i2 i4 i8 u2 u4 u8 f8".split()) | {"|b1", "|i1", "|u1"}


@dataclass(frozen=True)
class FileEntry:
    """The entry of a file in a manifest: its size, and a checksum that covers all of it."""

    name: str
    n_bytes: int
    checksum: int


def write_file(path: Path, parts: Parts) -> FileEntry:
    """Write parts to a new file, durably; it is renamed to its name when it is complete."""
    arrays = dict(parts.arrays)
    columns = {name: write_column(name, column, arrays) for name, column in parts.columns.items()}
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = {}
    offset = 0
    for name, array in plain.items():
        assert array.dtype.str in _TYPES, f"{name}: arrays of {array.dtype} are not written"
        described[name] = [array.dtype.str, list(array.shape), offset, _sums(array)]
        offset = _aligned(offset + array.nbytes)
    header = json.dumps({"facts": parts.facts, "arrays": described, "columns": columns}).encode()
    first = _aligned(_ALIGNMENT + len(header))
    prefix = _make_prefix(VERSION, zlib.crc32(header), len(header), first + offset)
    temporary = path.with_name(f"{path.name}.new")
    with disk.NewFile(temporary) as file:
        file.write(prefix.ljust(_ALIGNMENT, b"\0") + header)
        for name, array in plain.items():
            file.seek(first + described[name][2])  # type: ignore[operator]
            file.write(_octets(array))
        file.truncate(first + offset)
        file.sync()
    disk.rename(temporary, path)
    return FileEntry(path.name, first + offset, _own_checksum(prefix))


class OpenedFile(NamedTuple):
    """The contents of a file; `verify` compares the checksums of its arrays."""

    parts: Parts
    verify: Callable[[], None]


def read_file(path: Path, written: FileEntry) -> OpenedFile:
    """Map a file into memory, its header verified."""
    mapped, header = _map(path)
    if len(mapped) != written.n_bytes or _own_checksum(mapped[: _PREFIX.size]) != written.checksum:
        raise DamagedStoreError(str(path), "it is not the file that the manifest names")
    try:
        described = json.loads(header)
        first = _aligned(_ALIGNMENT + len(header))
        arrays = {
            name: _array(mapped, first + offset, dtype, shape)
            for name, (dtype, shape, offset, _) in described["arrays"].items()
        }
        columns = {n: read_column(n, of, arrays) for n, of in described["columns"].items()}
        sums = {name: (arrays[name], of[3]) for name, of in described["arrays"].items()}
        return OpenedFile(Parts(described["facts"], arrays, columns), partial(_verify, path, sums))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(str(path), f"its header is malformed: {error}") from error


def check_version(path: object, version: int, newest: int) -> None:
    """Raise NewerStoreError for a format that is newer than this release."""
    if version > newest:
        reason = f"it has version {version}; this release of Tocsin reads up to version {newest}"
        raise NewerStoreError(str(path), reason)
    if version < 1:
        raise DamagedStoreError(str(path), f"there is no version {version}")


def _make_prefix(version: int, checksum: int, n_header: int, n_file: int) -> bytes:
    prefix = _PREFIX.pack(MAGIC, version, checksum, n_header, n_file, 0)[:-4]
    return prefix + struct.pack("<I", zlib.crc32(prefix))


def _own_checksum(prefix: bytes) -> int:
    return int(_PREFIX.unpack(prefix)[-1])


def _map(path: Path) -> tuple[mmap.mmap, bytes]:
    """Map a file; return it with its header, both lengths and the header's checksum verified."""
    try:
        with disk.opened(path) as number:
            n_bytes = os.fstat(number).st_size
            if n_bytes < _ALIGNMENT:
                raise DamagedStoreError(str(path), f"it is cut off: it has only {n_bytes} bytes")
            mapped = mmap.mmap(number, n_bytes, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise DamagedStoreError(str(path), "the file is missing") from None
    except OSError as error:
        raise StoreError(str(path), f"cannot be read: {error.strerror or error}") from error
    prefix = mapped[: _PREFIX.size]
    magic, version, checksum, n_header, n_file, own = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise DamagedStoreError(str(path), "it is not a file of a subscription store")
    if own != zlib.crc32(prefix[:-4]):
        raise DamagedStoreError(str(path), "the checksum of its first bytes is wrong")
    check_version(path, version, VERSION)
    if n_file != n_bytes:
        raise DamagedStoreError(str(path), f"it has {n_bytes} bytes, not {n_file}: it is cut off")
    header = mapped[_ALIGNMENT : _ALIGNMENT + n_header]
    if zlib.crc32(header) != checksum:
        raise DamagedStoreError(str(path), "the checksum of its header is wrong")
    return mapped, header


def _array(mapped: mmap.mmap, offset: int, dtype: str, shape: list[int]) -> NDArray[Any]:
    if dtype not in _TYPES:
        raise ValueError(f"there are no arrays of {dtype}")
    n = int(np.prod(shape, dtype=np.int64))
    if not n:
        return np.empty(shape, dtype)
    return np.frombuffer(mapped, dtype, n, offset).reshape(shape)


def _verify(path: Path, arrays: dict[str, tuple[NDArray[Any], list[int]]]) -> None:
    """Compare all checksums; raise DamagedStoreError."""
    for name, (array, expected) in arrays.items():
        if _sums(array) != expected:
            raise DamagedStoreError(str(path), f"the checksum of {name} is wrong")


def _sums(array: NDArray[Any]) -> list[int]:
    """Return the checksums of an array, in several threads: zlib releases Python's lock."""
    octets = _octets(array)
    chunks = [octets[first : first + _CHUNK] for first in range(0, len(octets), _CHUNK)]
    if len(chunks) < 2:
        return [zlib.crc32(chunk) for chunk in chunks]
    with ThreadPoolExecutor(min(8, len(chunks), os.cpu_count() or 1)) as pool:
        return list(pool.map(zlib.crc32, chunks))


def _octets(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
