#!/usr/bin/env python3
"""Writes src/web/charset/tables.bin from Python's codecs, or with --check compares what it holds.

The file is one raw deflate stream. Unpacked it is one array of 16-bit code points (0: none), stored as the differences
between neighbours, first all high bytes, then all low bytes. Each encoding has its bytes from 0x80 to 0xff; those of two
bytes a character also a row of the second bytes from 0x40 to 0xfe without 0x7f for each first byte from 0x81 to 0xfe.
"""

import pathlib
import sys
import zlib

FILE = pathlib.Path(__file__).parent.parent / "src/web/charset/tables.bin"

# In the order of ENCODINGS in src/web/charset.rs.
SINGLE = """iso8859_2 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_15 koi8_r koi8_u cp866 mac_roman cp874 cp1250 cp1251
    cp1253 cp1254 cp1255 cp1256 cp1257 cp1258""".split()
TRAILS = [*range(0x40, 0x7F), *range(0x80, 0xFF)]
DOUBLE = [["gb18030"], ["cp950", "big5hkscs"], ["cp932"], ["cp949"]]


def code(encoding, *given):
    try:
        text = bytes(given).decode(encoding)
    except UnicodeDecodeError:
        return 0
    # Two characters, those beyond 16 bits and private ones are left out.
    return ord(text) if len(text) == 1 and ord(text) < 0xE000 or "\uf900" <= text <= "\uffff" else 0


def first_of(encodings, *given):
    return next(filter(None, (code(encoding, *given) for encoding in encodings)), 0)


def table():
    for encodings in [[name] for name in SINGLE] + DOUBLE:
        yield from (first_of(encodings, byte) for byte in range(0x80, 0x100))
        for lead in range(0x81, 0xFF) if encodings in DOUBLE else []:
            # Where a byte alone is a character, it begins no other.
            is_lead = not first_of(encodings, lead)
            yield from (first_of(encodings, lead, trail) if is_lead else 0 for trail in TRAILS)


def unpacked():
    codes = list(table())
    deltas = [(code - before) & 0xFFFF for code, before in zip(codes, [0] + codes)]
    return bytes(delta >> 8 for delta in deltas) + bytes(delta & 0xFF for delta in deltas)


if sys.argv[1:] == ["--check"]:
    sys.exit(zlib.decompress(FILE.read_bytes(), -15) != unpacked())
packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
FILE.parent.mkdir(exist_ok=True)
FILE.write_bytes(packer.compress(unpacked()) + packer.flush())
