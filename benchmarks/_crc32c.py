"""CRC-32C, which Prometheus puts behind everything it stores; by a library in C, or filling 100,000 GPUs took minutes.

The framing of snappy carries the checksum of every 64 KiB that it frames:
https://github.com/google/snappy/blob/main/framing_format.txt
"""

import functools
import struct

import cramjam

_IDENTIFIER = 10  # bytes of the stream's first frame
_FRAME = 8  # bytes of a frame's type, length and checksum
_PIECE = 65_536
_POLYNOMIAL = 0x82F63B78
_BITS = range(32)
_MASK = 0xFFFFFFFF


def crc32c(data: bytes) -> bytes:
    """The checksum, as Prometheus writes it."""
    framed = bytes(cramjam.snappy.compress(data))
    checksum, place, left = 0, _IDENTIFIER, len(data)
    while left > 0:
        (length,) = struct.unpack("<I", framed[place + 1 : place + 4] + b"\0")
        (masked,) = struct.unpack("<I", framed[place + 4 : place + _FRAME])
        rotated = (masked - 0xA282EAD8) & _MASK
        piece = min(_PIECE, left)
        checksum = _applied(_zeros(piece), checksum) ^ (((rotated << 15) | (rotated >> 17)) & _MASK)
        place += 4 + length
        left -= piece
    return struct.pack(">I", checksum)


def _applied(matrix: tuple[int, ...], vector: int) -> int:
    found = 0
    for bit in _BITS:
        if vector >> bit & 1:
            found ^= matrix[bit]
    return found


@functools.lru_cache(maxsize=1 << 16)
def _zeros(length: int) -> tuple[int, ...]:
    """What so many bytes that follow do to a checksum (as zlib's crc32_combine)."""
    operator = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    found = tuple(1 << bit for bit in _BITS)
    bits = 8 * length
    while bits:
        if bits & 1:
            found = tuple(_applied(operator, row) for row in found)
        operator = tuple(_applied(operator, row) for row in operator)
        bits >>= 1
    return found
