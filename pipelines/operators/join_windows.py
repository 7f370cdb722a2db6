"""Join windows: how far apart in time two records of joined streams may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from weir.pipelines.arguments import not_negative_ms, to_ms
from weir.pipelines.errors import TopologyError


@dataclass(frozen=True, kw_only=True)
class JoinWindows:
    """A left record at ``t`` is joined with right records in ``[t - before, t + after]``, both ends included.

    There is no default grace. Each side is kept for before + after + grace of its own stream time, or for the join's
    ``retention``. A left or outer join forwards a record without a match once stream time has passed its window and the
    grace.

    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("id"), value=Int64("cents"))
    >>> payments = builder.stream("payments", key=String("id"), value=Int64("paid"))
    >>> hour = JoinWindows.of_time_difference_and_grace(timedelta(hours=1), timedelta(minutes=5))
    >>> orders.join(payments, windows=hour, store="paid").to_delta("paid_orders")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("orders").pipe_input("7", 250, timestamp_ms=0)
    ...     driver.create_input_topic("payments").pipe_input("7", 250, timestamp_ms=1_800_000)
    ...     driver.create_output_table("paid_orders").read_rows()
    [{'id': '7', 'cents': 250, 'paid': 250}]
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: timedelta) -> JoinWindows:
        """Records at most ``difference`` apart; records without a match are forwarded as soon as their window is over.

        >>> JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=1))
        JoinWindows(before_ms=60000, after_ms=60000, grace_ms=0)
        """
        return cls.of_time_difference_and_grace(difference, timedelta(0))

    @classmethod
    def of_time_difference_and_grace(cls, difference: timedelta, grace: timedelta) -> JoinWindows:
        """Records at most ``difference`` apart; records without a match also wait ``grace`` for out-of-order ones.

        >>> JoinWindows.of_time_difference_and_grace(timedelta(minutes=1), timedelta(seconds=5))
        JoinWindows(before_ms=60000, after_ms=60000, grace_ms=5000)
        """
        difference_ms = not_negative_ms(difference, "time difference")
        return cls(before_ms=difference_ms, after_ms=difference_ms, grace_ms=not_negative_ms(grace, "grace"))

    def before(self, difference: timedelta) -> JoinWindows:
        """Right records may be at most ``difference`` older than the left one.

        >>> minute = JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=1))
        >>> minute.before(timedelta(0))
        JoinWindows(before_ms=0, after_ms=60000, grace_ms=0)
        """
        return replace(self, before_ms=to_ms(difference, "before"))._checked()

    def after(self, difference: timedelta) -> JoinWindows:
        """Right records may be at most ``difference`` newer than the left one.

        >>> minute = JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=1))
        >>> minute.after(timedelta(hours=1))
        JoinWindows(before_ms=60000, after_ms=3600000, grace_ms=0)
        """
        return replace(self, after_ms=to_ms(difference, "after"))._checked()

    @property
    def retention_ms(self) -> int:
        """How long each side has to be kept, by its own stream time."""
        return max(1, self.before_ms + self.after_ms + self.grace_ms)

    def _checked(self) -> JoinWindows:
        if self.before_ms + self.after_ms < 0:
            raise TopologyError(
                f"join windows from {self.before_ms} ms before to {self.after_ms} ms after end before "
                "they begin; make one of the two larger"
            )
        return self
