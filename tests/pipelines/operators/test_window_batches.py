"""Windows of every kind, suppressions and late records: any cut into batches gives what single records give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import (
    ALL,
    CUTS,
    FINAL,
    RECORDS,
    Totals,
    batched_and_single,
    build,
    fold,
    larger,
)
from weir import (
    BufferConfig,
    EmitStrategy,
    KStream,
    SessionWindows,
    SlidingWindows,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


SESSIONS = SessionWindows.of_inactivity_gap_and_grace(ms(4), ms(5))
STRICT_SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(ms(3))
SLIDING = SlidingWindows.of_time_difference_and_grace(ms(8), ms(6))
STRICT_SLIDING = SlidingWindows.of_time_difference_with_no_grace(ms(5))
TUMBLING = TimeWindows.of_size_and_grace(ms(10), ms(4))
HOPPING = TUMBLING.advance_by(ms(3))
UNLIMITED = UnlimitedWindows.start_on(datetime(1970, 1, 1, 0, 0, 0, 20_000, UTC))
ON_CLOSE = EmitStrategy.on_window_close()
KINDS = {
    "sessions": SESSIONS,
    "strict sessions": STRICT_SESSIONS,
    "sliding": SLIDING,
    "strict sliding": STRICT_SLIDING,
    "unlimited": UNLIMITED,
}


def joined(key: str, one: Totals, other: Totals) -> Totals:
    return Totals(one.total + other.total, f"({one.words}|{other.words})")


def late_of(windows) -> Callable[[KStream], None]:
    return lambda s: (
        s.group_by_key()
        .windowed_by(windows, late_to=lambda late: late.to_delta("late"))
        .agg("s", **ALL)
        .to_delta("out")
    )


PROGRAMS: dict[str, Callable[[KStream], None]] = {
    **{
        f"{name} to every update": lambda s, w=windows: (
            s.group_by_key().windowed_by(w).agg("s", **ALL).to_stream().to_delta("out")
        )
        for name, windows in KINDS.items()
    },
    **{
        f"{name} to table": lambda s, w=windows: s.group_by_key().windowed_by(w).agg("s", **ALL).to_delta("out")
        for name, windows in KINDS.items()
    },
    **{
        f"{name}, final": lambda s, w=windows: (
            s.group_by_key().windowed_by(w).agg("s", **ALL).suppress(FINAL).to_delta("out")
        )
        for name, windows in KINDS.items()
        if windows is not UNLIMITED
    },
    **{
        f"{name}, on close": lambda s, w=windows: (
            s.group_by_key()
            .windowed_by(w)
            .emit_strategy(ON_CLOSE)
            .agg("s", **ALL)
            .to_stream()
            .filter(col("n") > 1)
            .to_delta("out")
        )
        for name, windows in {**KINDS, "hopping": HOPPING}.items()
        if windows is not UNLIMITED
    },
    **{f"late for {name}": late_of(windows) for name, windows in {**KINDS, "hopping": HOPPING}.items()},
    **{
        f"{name} kept longer": lambda s, w=windows: (
            s.group_by_key().windowed_by(w, retention=ms(40)).agg("s", **ALL).suppress(FINAL).to_delta("out")
        )
        for name, windows in {"sessions": SESSIONS, "sliding": SLIDING, "hopping": HOPPING}.items()
    },
    "hopping kept longer, every update": lambda s: (
        s.group_by_key().windowed_by(HOPPING, retention=ms(40)).agg("s", **ALL).to_stream().to_delta("out")
    ),
    "session aggregate": lambda s: (
        s.group_by_key()
        .windowed_by(SESSIONS)
        .aggregate("s", lambda: Totals(0, ""), fold, joined)
        .to_stream()
        .to_delta("out")
    ),
    "session aggregate to table": lambda s: (
        s.group_by_key()
        .windowed_by(STRICT_SESSIONS)
        .aggregate("s", lambda: Totals(0, ""), fold, joined)
        .to_delta("out")
    ),
    "session reduce, final": lambda s: (
        s.filter(col("amount") > 1)
        .group_by_key()
        .windowed_by(SESSIONS)
        .reduce("s", larger)
        .suppress(FINAL)
        .to_delta("out")
    ),
    "rate limit": lambda s: (
        s.group_by_key()
        .agg("s", **ALL)
        .suppress(Suppressed.until_time_limit(ms(7), BufferConfig.unbounded()))
        .to_stream()
        .to_delta("out")
    ),
    "rate limit in a small buffer": lambda s: (
        s.to_table("s")
        .suppress(Suppressed.until_time_limit(ms(12), BufferConfig.max_records(2)))
        .to_stream()
        .to_delta("out")
    ),
    "few bytes of a table": lambda s: (
        s.group_by_key()
        .reduce("s", larger)
        .suppress(Suppressed.until_time_limit(ms(20), BufferConfig.max_bytes(25)))
        .to_stream()
        .to_delta("out")
    ),
    "windows with a time limit": lambda s: (
        s.group_by_key()
        .windowed_by(HOPPING)
        .count("s")
        .suppress(Suppressed.until_time_limit(ms(5), BufferConfig.max_records(4)))
        .to_stream()
        .to_delta("out")
    ),
    "final sessions of a filtered table": lambda s: (
        s.group_by_key().windowed_by(SESSIONS).count("s").filter(col("count") < 3).suppress(FINAL).to_delta("out")
    ),
    "final sliding windows in a strict buffer": lambda s: (
        s.group_by_key()
        .windowed_by(SLIDING)
        .count("s")
        .suppress(Suppressed.until_window_closes(BufferConfig.max_records(10_000).shut_down_when_full()))
        .to_delta("out")
    ),
    "sliding aggregate": lambda s: (
        s.group_by_key().windowed_by(SLIDING).aggregate("s", lambda: Totals(0, ""), fold).to_stream().to_delta("out")
    ),
}


def without_deleted(found: dict) -> dict:
    """Without tombstones, since one may be of a session that opened and vanished within a batch."""
    return {
        **found,
        "facts": {table: [row for row in rows if not row["_deleted"]] for table, rows in found["facts"].items()},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(8))
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    sub_topology = build(PROGRAMS[name])
    batched, single = batched_and_single(sub_topology, records, cuts)
    if any(sink.is_updates for sink in sub_topology.sinks):
        batched, single = without_deleted(batched), without_deleted(single)
    assert batched == single
