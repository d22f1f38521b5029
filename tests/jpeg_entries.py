"""Entries of JPEG files by a slow walk over all bits, made from ITU-T T.81 alone: what the compiled part must find."""

import struct

from tensorstore_ds import native

#: Sampling factors that the first of three components may have; the others have 1 x 1.
FACTORS = {(1, 1), (2, 1), (1, 2), (2, 2)}


class Unfit(Exception):
    """A file that has no entries."""


def need(fits):
    if not fits:
        raise Unfit


def index(data):
    """As `native.index`: the bytes of all entries, 12 each; none of a file that has none."""
    try:
        return b"".join(struct.pack("<Ihhhh", at, *predictions, 0) for at, predictions in walk(bytes(data)))
    except (Unfit, IndexError, struct.error):
        return b""


def no_entries(data):
    """As `native.index`, where there are no kernels."""
    return b""


def use(patch, index):
    """Let entries come from `index` alone, and the statistics of pixels from decoded images."""
    patch.setattr(native, "index", index)
    patch.setattr(native, "walk", lambda data: (b"", ()))


def walk(data, every=4):
    """(8 * offset + bit, DC predictions of three components) before every so many units of each row of units."""
    need(data[:2] == b"\xff\xd8" and len(data) < 2**29)
    tables, frame, at = {}, None, 2
    while True:
        need(data[at] == 0xFF)
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        segment, at = data[at + 4 : at + 2 + length], at + 2 + length
        need(len(segment) == length - 2 >= 0 and 0xC0 <= marker < 0xFF)
        if marker == 0xC4:
            tables |= huffman_tables(segment)
        elif marker == 0xDD:
            need(segment == b"\0\0")
        elif marker in (0xC0, 0xC1):
            need(frame is None)
            frame = segment
        elif marker == 0xDA:
            break
        else:
            need(marker in (0xDB, 0xFE) or 0xE0 <= marker <= 0xEF)
    need(frame is not None and frame[0] == 8 and frame[5] in (1, 3) and len(frame) == 6 + 3 * frame[5])
    height, width = int.from_bytes(frame[1:3]), int.from_bytes(frame[3:5])
    components = {frame[i]: (frame[i + 1] >> 4, frame[i + 1] & 15) for i in range(6, len(frame), 3)}
    need(height and width and len(components) == frame[5])
    need(segment[0] == len(components) and segment[-3:] == b"\0\x3f\0" and list(segment[1:-3:2]) == list(components))
    factors = list(components.values())
    if len(factors) == 1:
        factors = [(1, 1)]  # A.2.2: of a single component each block is a unit
    need(factors[0] in FACTORS and factors[1:] in ([], [(1, 1), (1, 1)]))
    blocks = []  # of a unit: component, tables of DC and AC
    for component, (across, down) in enumerate(factors):
        which = segment[2 + 2 * component]
        need((0, which >> 4) in tables and (1, which & 15) in tables)
        blocks += across * down * [(component, tables[0, which >> 4], tables[1, which & 15])]
    rows, columns = -(-height // (8 * factors[0][1])), -(-width // (8 * factors[0][0]))
    bits, offsets = scan_bits(data, at)
    predictions, place, found = [0, 0, 0], 0, []
    for unit in range(rows * columns):
        if unit % columns % every == 0:
            found.append((8 * offsets[place // 8] + place % 8, tuple(predictions)))
        for component, dc, ac in blocks:
            size, place = symbol(bits, place, dc)
            value, place = receive(bits, place, size)
            predictions[component] += value
            coefficient = 1
            while coefficient < 64:
                run, place = symbol(bits, place, ac)
                if run == 0:
                    break
                need(run & 15 or run == 0xF0)
                coefficient += (run >> 4) + 1
                _, place = receive(bits, place, run & 15)
            need(coefficient <= 64)
    need(0 <= len(bits) - place < 8)
    return found


def huffman_tables(segment):
    """Symbols by their codes, as texts of 0 and 1 (C.2), by (class, number) of the table."""
    tables, at = {}, 0
    while at < len(segment):
        which, counts, code, codes = segment[at], segment[at + 1 : at + 17], 0, {}
        at += 17
        for length, count in enumerate(counts, 1):
            for _ in range(count):
                need(code < 1 << length)
                codes[f"{code:0{length}b}"] = segment[at]
                at, code = at + 1, code + 1
            code <<= 1
        tables[which >> 4, which & 15] = codes
    return tables


def scan_bits(data, at):
    """All bits of a scan as a text, and the offset of each byte that they come from: without stuffed zeros."""
    taken, offsets = [], []
    while True:
        if data[at] == 0xFF and data[at + 1]:
            need(data[at + 1] == 0xD9)
            return "".join(taken), offsets
        taken.append(f"{data[at]:08b}")
        offsets.append(at)
        at += 2 if data[at] == 0xFF else 1


def symbol(bits, place, codes):
    for length in range(1, 17):
        if bits[place : place + length] in codes:
            need(place + length <= len(bits))
            return codes[bits[place : place + length]], place + length
    raise Unfit


def receive(bits, place, size):
    """A value of so many bits (F.2.2.1)."""
    need(size < 16 and place + size <= len(bits))
    if size == 0:
        return 0, place
    value = int(bits[place : place + size], 2)
    return value if value >= 1 << (size - 1) else value - (1 << size) + 1, place + size
