"""Join windows: how far apart in time two records of joined streams may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from weir.pipelines.arguments import not_negative_ms, to_ms
from weir.pipelines.errors import TopologyError


@dataclass(frozen=True, kw_only=True)
class JoinWindows:
    """A left record at ``t`` meets right records in ``[t - before, t + after]``, both ends included.

    There is no default grace. Each side is kept for before + after + grace of its own stream time; a record without a
    match goes out of a left or outer join once stream time has passed its window and the grace.
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: timedelta) -> JoinWindows:
        """Records that are at most ``difference`` apart; what has no match is out as soon as its window is over."""
        return cls.of_time_difference_and_grace(difference, timedelta(0))

    @classmethod
    def of_time_difference_and_grace(cls, difference: timedelta, grace: timedelta) -> JoinWindows:
        """Records that are at most ``difference`` apart, with ``grace`` more to wait for those out of order."""
        difference_ms = not_negative_ms(difference, "time difference")
        return cls(before_ms=difference_ms, after_ms=difference_ms, grace_ms=not_negative_ms(grace, "grace"))

    def before(self, difference: timedelta) -> JoinWindows:
        """Right records may be that much older than the left one."""
        return replace(self, before_ms=to_ms(difference, "before"))._checked()

    def after(self, difference: timedelta) -> JoinWindows:
        """Right records may be that much newer than the left one."""
        return replace(self, after_ms=to_ms(difference, "after"))._checked()

    @property
    def retention_ms(self) -> int:
        """How long either side is kept, by its own stream time."""
        return max(1, self.before_ms + self.after_ms + self.grace_ms)

    def _checked(self) -> JoinWindows:
        if self.before_ms + self.after_ms < 0:
            raise TopologyError(
                f"join windows from {self.before_ms} ms before to {self.after_ms} ms after end before "
                "they begin; make one of the two larger"
            )
        return self
