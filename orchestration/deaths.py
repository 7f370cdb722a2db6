"""Lives of a driver that end one after another before they get on: how long the next start waits.

The first start comes at once, the second in a row after a pause, each further one after twice that. Which life has
ended, and by a kill, is ``weir.orchestration.succession``'s to find.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from weir.infra.control import ApplicationStatus
from weir.orchestration.thresholds import Thresholds
from weir.state.commit.record import CommitRecord

MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Deaths:
    """So many lives in a row; a sensor keeps them as its cursor."""

    life: str = ""
    """The newest of them."""
    count: int = 0
    seen_s: float = 0.0
    """When its end was noticed, in seconds since 1970."""

    @classmethod
    def of(cls, cursor: str | None) -> Deaths:
        return cls(**json.loads(cursor)) if cursor else cls()

    @property
    def cursor(self) -> str:
        return json.dumps(asdict(self))

    def with_life(self, life: str, *, has_got_on: bool, now_s: float) -> Deaths:
        """One more, unless it is counted already; a life that got on is the first of a new row."""
        if life == self.life:
            return self
        return Deaths(life, 1 if has_got_on else self.count + 1, now_s)

    def next_start_s(self, thresholds: Thresholds) -> float:
        """When the next driver is to be started, in seconds since 1970."""
        if self.count <= 1:
            return self.seen_s
        pause_s = thresholds.restart_pause_s * 2.0 ** min(self.count - 2, MOST_DOUBLINGS)
        return self.seen_s + min(pause_s, thresholds.restart_pause_max_s)


def has_got_on(life: ApplicationStatus, newest: CommitRecord | None, steady_s: float) -> bool:
    """Whether a driver that has ended had still committed ``steady_s`` after its start, or had nothing to commit
    then."""
    well_ms = 0 if newest is None else newest.at_ms
    metric = life.metric
    if metric is not None and metric.lag == 0 and metric.epoch == metric.committed_epoch:
        well_ms = max(well_ms, metric.at_ms)
    return well_ms - life.started_at_ms >= steady_s * 1000
