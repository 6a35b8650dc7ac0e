#!/usr/bin/env python3
"""Writes src/web/charset/tables.bin from Python's codecs, or with --check compares what it holds.

The file is one raw deflate stream. Unpacked it is one array of 16-bit code points (0: none), stored as the differences
between neighbours, first all high bytes, then all low bytes: the upper halves of the single-byte encodings below, then
the rows of GBK, Big5, JIS X 0208 and EUC-KR as the WHATWG Encoding Standard counts their pointers.
"""

import pathlib
import sys
import zlib

FILE = pathlib.Path(__file__).parent.parent / "src/web/charset/tables.bin"

# In the order of SINGLE in src/web/charset.rs.
SINGLE = """iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_10 iso8859_13 iso8859_14 iso8859_15
    iso8859_16 koi8_r koi8_u cp866 mac_roman mac_cyrillic cp874 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258""".split()

LOW, HIGH = [*range(0x40, 0x7F)], [*range(0x80, 0xFF)]


def code(encoding, *given):
    try:
        text = bytes(given).decode(encoding)
    except UnicodeDecodeError:
        return 0
    # Two characters, those beyond 16 bits and private ones are left out.
    return ord(text) if len(text) == 1 and ord(text) < 0xE000 or "\uf900" <= text <= "\uffff" else 0


def rows(encodings, leads, trails):
    for lead in leads:
        for trail in trails:
            yield next(filter(None, (code(encoding, lead, trail) for encoding in encodings)), 0)


def table():
    for encoding in SINGLE:
        yield from (code(encoding, byte) for byte in range(0x80, 0x100))
    yield from rows(["gb18030"], range(0x81, 0xFF), LOW + HIGH)
    yield from rows(["cp950", "big5hkscs"], range(0x81, 0xFF), LOW + HIGH[0x21:])
    yield from rows(["cp932"], [*range(0x81, 0xA0), *range(0xE0, 0xFD)], LOW + HIGH[:-2])
    yield from rows(["cp949"], range(0x81, 0xFF), range(0x41, 0xFF))


def unpacked():
    codes = list(table())
    deltas = [(code - before) & 0xFFFF for code, before in zip(codes, [0] + codes)]
    return bytes(delta >> 8 for delta in deltas) + bytes(delta & 0xFF for delta in deltas)


if sys.argv[1:] == ["--check"]:
    sys.exit(zlib.decompress(FILE.read_bytes(), -15) != unpacked())
packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
FILE.parent.mkdir(exist_ok=True)
FILE.write_bytes(packer.compress(unpacked()) + packer.flush())
