"""Sizes, durations and counts as people read them."""

__all__ = ["counted", "readable_size", "time_text"]


def readable_size(size_bytes: float) -> str:
    """Return a size in the binary unit that fits: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def time_text(seconds: float) -> str:
    """Return a duration as 0:42, 12:05 or 3:20:00."""
    whole = round(max(seconds, 0.0))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 process`, `2,048 tokens`.

    Args:
        number: At least 0.
        noun: For one of them.
        plural: For any other number of them; None for the noun with s, or with es after s, x, ch and sh.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + ('es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's')}"
