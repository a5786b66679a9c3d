"""A file that is only ever added to, in frames: pieces with their length and checksums.

A process may be killed, or a machine lose its power, while a frame is written. So the last one may be torn, and is then
dropped; anything else that does not fit its checksums is damage, and is refused with its place.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from klover.base.checks import DamagedFile

LENGTHS, SUM = struct.Struct("<II"), struct.Struct("<I")
"""In front of each piece: its length and checksum, and the checksum of these two."""
HEAD = LENGTHS.size + SUM.size
AT_A_TIME = 2**20


def pack(piece: bytes) -> bytes:
    """Return a frame around a piece."""
    lengths = LENGTHS.pack(len(piece), zlib.crc32(piece))
    return lengths + SUM.pack(zlib.crc32(lengths)) + piece


def unpack(file: BinaryIO, what: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces from where a file stands, each with the place of its end, and stop before a torn one."""
    place, size = file.tell(), os.fstat(file.fileno()).st_size
    while size - place >= HEAD:
        head = file.read(HEAD)
        if SUM.unpack(head[LENGTHS.size :])[0] != zlib.crc32(head[: LENGTHS.size]):
            if _is_blank(file, head):
                return
            raise damaged(what, place)
        length, checksum = LENGTHS.unpack(head[: LENGTHS.size])
        end = place + HEAD + length
        if end > size:
            return
        piece = file.read(length)
        if zlib.crc32(piece) != checksum:
            if end == size:
                return
            raise damaged(what, place)
        yield end, piece
        place = end


def damaged(what: str, place: int) -> DamagedFile:
    """Return the error for damage that begins at a byte, and say what may be done about it."""
    return DamagedFile(
        f"{what} is damaged: what begins at byte {place} is not what was written there. Put a copy of the file in its "
        f"place; or keep what stands before (truncate -s {place}), which costs the rest; or delete it, and begin again."
    )


def _is_blank(file: BinaryIO, head: bytes) -> bool:
    """Whether all of the rest is zeros, which a loss of power leaves where data had not come to the disk."""
    while head:
        if head.strip(b"\0"):
            return False
        head = file.read(AT_A_TIME)
    return True
