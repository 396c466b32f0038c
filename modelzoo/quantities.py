"""Sizes and durations as people read them."""

__all__ = ["readable_size", "time_text"]


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
