"""Durations and sizes in words, the same everywhere a person reads them.

The pages of the monitor say them alike: `server_app/extras/monitor/static/words.js`.
"""

MIB = 1024**2
DAY_S = 86400


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds.

    >>> clock(3723.4)
    '1:02:03'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def human_seconds(seconds: float) -> str:
    """Return a duration in the unit in which it is best read.

    >>> [human_seconds(s) for s in (0.0421, 4.2, 42, 3723, 200_000)]
    ['42 ms', '4.20 s', '42.0 s', '1:02:03', '2.31 days']
    """
    if seconds < 0.995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return clock(seconds) if seconds < 2 * DAY_S else f"{seconds / DAY_S:.3g} days"


def scale_bytes(largest: float) -> tuple[float, str]:
    """Return the decimal unit in which numbers up to this one are best read, as (bytes, name)."""
    units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next(((size, name) for size, name in units if largest >= size), (1.0, "B"))


def human_bytes(count: float) -> str:
    """Return a size in the unit in which it is best read.

    >>> human_bytes(999), human_bytes(12_345_678)
    ('999 B', '12.3 MB')
    """
    size, name = scale_bytes(count)
    return f"{count / size:.0f} B" if size == 1 else f"{count / size:.1f} {name}"


def size_option(size: int) -> str:
    """Return a number of bytes as options and kits take it, in MiB, rounded up.

    >>> size_option(512 * MIB + 1)
    '513M'
    """
    return f"{-(-size // MIB)}M"
