"""Numbers as a person reads them."""

import datetime


def short(value: float | None) -> str:
    """Return a number with three decimals, or three digits where those would say nothing; "" for None."""
    if value is None:
        return ""
    plain = value == 0 or 0.01 <= abs(value) < 1000
    return f"{value:.3f}" if plain else f"{value:.3g}"


def scale_bytes(largest: float) -> tuple[float, str]:
    """Return the decimal unit in which numbers up to this one are best read, as (bytes, name)."""
    units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next(((size, name) for size, name in units if largest >= size), (1.0, "B"))


def human_bytes(count: float) -> str:
    """Return for example "12.3 MB"."""
    size, name = scale_bytes(count)
    return f"{count / size:.0f} B" if size == 1 else f"{count / size:.1f} {name}"


def human_seconds(seconds: float) -> str:
    """Return for example "0.42 s", "42.0 s" or "1:02:03"."""
    if seconds > 1e12:  # no run took so long: a damaged file
        return f"{seconds:.3g} s"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))
