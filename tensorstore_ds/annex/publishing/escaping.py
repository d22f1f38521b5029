"""Texts of others as they may stand in Markdown and YAML: nothing in them is obeyed there."""

from __future__ import annotations

import json
import re

from tensorstore_ds.errors import one_line

_OBEYED = re.compile(r"[\\`*_{}\[\]#|!~$]|:(?=//)")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def markdown(text: str) -> str:
    """Escape a text of one line, so that it has no links, HTML, emphasis or table separators.

    >>> markdown("a|b <b>_c_</b>"), markdown("https://x.org www.x.org")
    ('a\\\\|b &lt;b&gt;\\\\_c\\\\_&lt;/b&gt;', 'https\\\\://x.org www\\\\.x.org')
    """
    plain = one_line(text).replace("&", "&amp;")
    escaped = _OBEYED.sub(r"\\\g<0>", plain).replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?i)\b(www)\.", r"\1\\.", escaped)


def code_block(text: str, language: str = "") -> str:
    """A text of several lines as a block of code that the text cannot end.

    >>> code_block("x")
    '```\\nx\\n```'
    """
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    lines = "\n".join(one_line(line) for line in text.splitlines())
    return f"{fence}{language}\n{lines}\n{fence}"


def yaml(text: str) -> str:
    """A text in quotes, valid in YAML and JSON.

    >>> yaml('say "no": #1')
    '"say \\\\"no\\\\": #1"'
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
