"""What the disk tier has read and written, by kind of value, counted where it happens."""

import threading
from collections import Counter

__all__ = ["DiskTraffic"]


class DiskTraffic:
    """Bytes since the tiers were made; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read_bytes: Counter[str] = Counter()
        self.written_bytes: Counter[str] = Counter()

    def read(self, kind: str, size_bytes: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self.read_bytes[kind] += size_bytes

    def written(self, kind: str, size_bytes: int) -> None:
        """Count bytes that were written."""
        with self._lock:
            self.written_bytes[kind] += size_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes in both directions."""
        return self.read_bytes.total() + self.written_bytes.total()
