"""Numbers as they stand in a sentence."""

from __future__ import annotations


def rate(samples: float) -> str:
    """Samples a second, to three digits.

    >>> rate(1234567.0), rate(86.42), rate(0.513)
    ('1,230,000 samples/s', '86.4 samples/s', '0.513 samples/s')
    """
    digits = 3
    if samples >= 100:
        step = 10 ** (len(str(int(samples))) - digits)
        return f"{round(samples / step) * step:,} samples/s"
    return f"{samples:.3g} samples/s"


def duration(seconds: float) -> str:
    """A time of less than a minute, to three digits.

    >>> duration(0.0000123), duration(0.0456), duration(2.5)
    ('12.3 µs', '45.6 ms', '2.5 s')
    """
    factor, unit = (1e6, "µs") if seconds < 999.5e-6 else (1e3, "ms") if seconds < 0.9995 else (1, "s")
    return f"{seconds * factor:.3g} {unit}"


def size(nbytes: float) -> str:
    """Bytes, in decimal units.

    >>> size(800), size(47_000_000), size(1.25e9)
    ('800 B', '47 MB', '1.2 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.0f} {unit}" if nbytes >= 9.95 or unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def percent(share: float) -> str:
    """A share.

    >>> percent(0.003), percent(0.25)
    ('0.3 %', '25 %')
    """
    return f"{share:.1%}".replace("%", " %") if share < 0.0995 else f"{share:.0%}".replace("%", " %")
