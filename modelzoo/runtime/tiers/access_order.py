"""Which unit comes next: what came after the same two uses the last time."""

__all__ = ["AccessOrder"]


class AccessOrder:
    """Learned as the model runs; a forward, a backward and an evaluation differ in the two uses before, so each finds its own way.

    A wrong guess costs a read that nobody uses, never a wrong value.
    """

    def __init__(self) -> None:
        self._followed_by: dict[tuple[int, int], int] = {}
        self._last = (-1, -1)

    def note(self, current: int) -> None:
        """Note a use.

        Args:
            current: Number of the unit that is used now.
        """
        self._followed_by[self._last] = current
        self._last = (self._last[1], current)

    def expected(self, count: int) -> list[int]:
        """Return what is expected after the last use.

        Args:
            count: How many uses to look ahead.
        """
        place, expected = self._last, list[int]()
        while len(expected) < count and (following := self._followed_by.get(place)) is not None:
            expected.append(following)
            place = (place[1], following)
        return expected
