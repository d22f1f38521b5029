"""Inputs that are nearly right: bytes, JSON and text changed in a few places, and some made from a grammar.

All that is random comes from the `Random` that is given: the same one gives the same input.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

#: What stands where a number is expected.
NUMBERS = (
    *b"0 -0 -1 00 +1 0.5 1e5 1e999 -1e999 1e308 1e-320 nan inf -inf NaN Infinity 127 255 256 65536 2147483647".split(),
    *b"2147483648 4294967296 1099511627776 9223372036854775807 9223372036854775808 18446744073709551616".split(),
    *b"1_0 0x10 true null 1,5 1e 59.5".split(),
    *(b"9" * 400, b"9" * 5000, b"", "\u0661".encode(), "\u00b2".encode()),
)
#: What stands where a name is expected.
NAMES = (
    *b". .. ../a /etc/passwd a/b a\\b __class__ con - -- %s {0} $HOME \" '".split(),
    *(b"", b" ", b"a" * 300, b"\x00", b"\n", b"\r\n", b"\x1b[31mred", b"\x1b]0;title\x07", b"\xff", b"\xed\xa0\x80"),
    *(b"\xef\xbb\xbf", "\u732b\u202eabc".encode(), "\U0001f600".encode(), b"a\tb", b"\xc2\x85", b"\xe2\x80\xa8"),
)
_EXTREME_BYTES = (0, 1, 2, 7, 255, 254, 128, 127, 32, 48, 57, 45)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[\w.+-]+|\s+|[^\w\s]")


# --- bytes --------------------------------------------------------------------------------------------------------


def _flip(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _replace_byte(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    data[random.randrange(len(data))] = random.choice((*_EXTREME_BYTES, random.randrange(256)))


def _delete(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.choice((1, 1, 2, 8, 40, 1000))]


def _insert_noise(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = bytes(random.randrange(256) for _ in range(random.choice((1, 4, 20))))


def _repeat(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    start, at = random.randrange(len(data)), random.randrange(len(data) + 1)
    data[at:at] = data[start : start + random.choice((4, 40, 400))] * random.choice((1, 1, 2, 20))


def _insert_token(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(tokens)


def _overwrite(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at, token = random.randrange(len(data)), random.choice(tokens)
    data[at : at + len(token)] = token


def _replace_number(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    found = [match.span() for match in _NUMBER.finditer(data)]
    if found:
        start, end = random.choice(found)
        data[start:end] = random.choice(NUMBERS)


def _replace_word(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    found = [match.span() for match in _WORD.finditer(data)]
    if found:
        start, end = random.choice(found)
        data[start:end] = random.choice((b"", *tokens, *NAMES))


def _swap_words(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    found = [match.span() for match in _WORD.finditer(data)]
    if len(found) > 1:
        (a, b), (c, d) = sorted(random.sample(found, 2))
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def _swap_lines(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    lines = data.split(b"\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[at : at + random.randrange(2)] = [lines[other]] * random.randrange(3)
    data[:] = b"\n".join(lines)


def _cut(random: Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    del data[random.randrange(len(data)) :]


Change = Callable[[Random, bytearray, Sequence[bytes]], None]
_SAME_LENGTH: Sequence[Change] = (_flip, _replace_byte)
_BINARY: Sequence[Change] = (
    *(*_SAME_LENGTH, *_SAME_LENGTH, _delete, _insert_noise, _repeat, _cut, _overwrite, _overwrite),
)
_TEXT: Sequence[Change] = (
    *(_flip, _replace_byte, _delete, _insert_noise, _repeat, _cut, _swap_lines, _swap_words, _insert_token),
    *(_insert_token, _replace_number, _replace_number, _replace_number, _replace_word, _replace_word),
)


def mutate_bytes(random: Random, data: bytes, tokens: Sequence[bytes] = (b"\xff\xff\xff\xff", b"\0\0\0\0")) -> bytes:
    """Binary data with one or a few changes; a third of the time of the same length."""
    return _mutate(random, data, _SAME_LENGTH if random.random() < 0.34 else _BINARY, tokens)


def mutate_text(random: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    """Text with one or a few changes: of bytes, of words, numbers and lines."""
    return _mutate(random, data, _TEXT, tokens)


def _mutate(random: Random, data: bytes, changes: Sequence[Change], tokens: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if changed:
            random.choice(changes)(random, changed, tokens)
    return bytes(changed[: 1 << 20])


# --- JSON ---------------------------------------------------------------------------------------------------------

_TEXTS = tuple(name.decode("utf-8", "surrogatepass" if name == b"\xed\xa0\x80" else "replace") for name in NAMES)
#: What stands in the place of any value.
VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2, 255, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.5, 1.0, -0.0, 1e308, 1e-320, float("nan"), float("inf"), *_TEXTS, "raw", "jpeg", "source", "zarr", "memmap"),
    *["uint8", "int64", "float64", "image", "label", "objects", "key", "1.0", "1.99", "2.0", "train", "00000"],
    "a" * 5000,
    *([], {}, [[]], [0], [1, 1, 1], [2**31, 2**31, 2**31], [2**40], [1] * 33, [None], [[0, 1]], [[0, 0]], ["a", "a"]),
    *({"a": 1}, {"": {}}, {"\x00": None}, [float("nan")] * 3),
)
JSON_TOKENS = (
    *(b"NaN", b"-Infinity", b"1e999", b"-", b"[" * 3000, b'{"a":' * 3000, b'"rows": 1, "rows": 2,', b"\xef\xbb\xbf"),
    *rb"\u0000 \ud800 \ud83d\ude00 // ' , } ] [],".split(),
    *(b"9" * 5000, b"\xff\xfe", b"\x00"),
)


def mutate_json(random: Random, data: bytes) -> bytes:
    """A document with one or a few values, members or bytes changed; sometimes another document altogether."""
    way = random.random()
    if way < 0.25:
        return mutate_text(random, data, JSON_TOKENS)
    value = grammar_value(random) if way < 0.3 else json.loads(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if places:
            _change_value(random, *random.choice(places))
    text = json.dumps(value, ensure_ascii=random.random() < 0.5, indent=random.choice((None, 1)))
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a document, as the object or array that it is in, and where. Checksums come last and once."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        for _ in range(1 if key in ("size", "sha256") else 4):
            yield value, key
        yield from _places(value[key])


def _change_value(random: Random, parent: Any, key: Any) -> None:
    old = parent[key]
    way = random.randrange(9)
    if way <= 2:
        parent[key] = copy.deepcopy(random.choice(VALUES))  # it may be changed next
    elif way == 3:
        del parent[key]
    elif way == 4 and isinstance(parent, dict):
        parent[random.choice(_TEXTS)] = copy.deepcopy(old)
    elif way == 5 and isinstance(old, int | float):
        parent[key] = random.choice((old + 1, old - 1, old * 2, -old, old + 2**32, old + 2**64, str(old), [old]))
    elif way == 6 and isinstance(old, str):
        at = random.randrange(len(old) + 1)
        parent[key] = old[:at] + random.choice("\0\x1b/.\n'\"<A\u202e") + old[at + random.randrange(2) :]
    elif way == 7 and isinstance(old, list):
        parent[key] = old * random.choice((0, 2, 50)) if len(old) < 200 else old[:1]
    else:
        parent[key] = [old]


def grammar_value(random: Random, depth: int = 0) -> Any:
    """Any JSON value, at most five deep."""
    way = random.randrange(3) if depth < 5 else 0
    if way == 1:
        return [grammar_value(random, depth + 1) for _ in range(random.randrange(4))]
    if way == 2:
        return {random.choice(_TEXTS): grammar_value(random, depth + 1) for _ in range(random.randrange(4))}
    return copy.deepcopy(random.choice(VALUES))


# --- XML and tables -----------------------------------------------------------------------------------------------

XML_TOKENS = (
    *(b"<object>", b"</object>", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#0;", b"&#10;", b"&lt;", b"<![CDATA["),
    *(b"<?xml version='1.0' encoding='%s'?>" % encoding for encoding in (b"utf-7", b"utf-16")),
    *(b"<a>" * 70, b"<a>" * 3000, b"]]>", b"a='1' a='2'", b"<bndbox><xmin>nan</xmin></bndbox>"),
    *(b"\xff\xfe", b"\x00", b"<!--", b"-->", b"<?p ?>", b"<part name='x' x='1' y='2'/>", b"xmlns='u'", b" " * 70000),
    b"<size><width>0</width></size>",
)
_ELEMENT = re.compile(rb"<(\w+)[^<>]*>[^<>]*</\1>|<(\w+)[^<>]*/>")
_CONTENT = re.compile(rb">([^<>]+)<|=['\"]([^'\"]*)['\"]")


def mutate_xml(random: Random, data: bytes) -> bytes:
    """A document with contents replaced, elements left out, repeated or moved; or bytes changed; or another one."""
    way = random.random()
    if way < 0.35:
        return mutate_text(random, data, XML_TOKENS)
    if way < 0.4:
        return grammar_xml(random, sorted(set(re.findall(rb"<(\w+)", data))))
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        contents = [match.span(match.lastindex or 0) for match in _CONTENT.finditer(changed)]
        elements = [match.span() for match in _ELEMENT.finditer(changed)]
        if contents and random.random() < 0.6:
            start, end = random.choice(contents)
            changed[start:end] = random.choice((*NUMBERS, *NAMES))
        elif elements:
            start, end = random.choice(elements)
            at = random.choice(elements)[0]
            piece = bytes(changed[start:end])
            way_ = random.randrange(3)
            if way_ == 0:
                del changed[start:end]
            else:
                changed[at:at] = piece * (1 if way_ == 1 else random.choice((2, 30)))
    return bytes(changed)


def grammar_xml(random: Random, names: Sequence[bytes], depth: int = 0) -> bytes:
    """Elements of known names, nested at random."""
    name = random.choice(names)
    inside = b"".join(grammar_xml(random, names, depth + 1) for _ in range(random.randrange(4) if depth < 4 else 0))
    attributes = b" file='a.png'" if random.random() < 0.2 else b" x='" + random.choice(NUMBERS[:30]) + b"'"
    return b"<%b%b>%b</%b>" % (name, attributes, inside or random.choice(NUMBERS), name)


TABLE_TOKENS = (
    *(b",", b"\t", b'"', b'""', b"\r", b"\x00", b"nan", b"inf", b"-1", b"1e999", b"a.png", b"../a.png", b"/etc/passwd"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"9" * 5000, b"\n\n", b"'", b";", b" ", b"a" * 200_000, b"1_0", b"#"),
)


def mutate_table(random: Random, data: bytes) -> bytes:
    """Lines of a list with cells changed, or lines of a grammar."""
    if random.random() > 0.1:
        return mutate_text(random, data, TABLE_TOKENS)
    delimiter = random.choice((b",", b"\t", b" "))
    cells = (b"a.png", b"b.png", b"path", b"label", b"x1", b"y1", b"x2", b"y2", b"1,2,3,4,0", *NUMBERS, *NAMES)
    lines = [
        delimiter.join(random.choice(cells) for _ in range(random.randrange(7))) for _ in range(random.randrange(5))
    ]
    return random.choice((b"\n", b"\r\n", b"\r")).join(lines)
