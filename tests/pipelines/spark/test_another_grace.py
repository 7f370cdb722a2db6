"""Windows of every kind under programs with other graces: what was closed stays closed, what was open is closed once.

Compared with models that take one record after the other, and whose grace is set between two of them. Sessions also get
other inactivity gaps.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.pipelines.operators.window_models import Model, Sessions, Sliding, Times
from tests.pipelines.spark.inline import Place, Row, Topics
from weir import (
    Application,
    BufferConfig,
    EmitStrategy,
    Json,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.state.commit.tables import read_rows, read_table

SIZE, GAP, GAPS = 20, 8, (8, 20, 5)


@dataclass(frozen=True)
class Numbered:
    number: int


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


KINDS: dict[str, tuple[Any, Any]] = {
    "tumbling": (lambda grace, _: TimeWindows.of_size_and_grace(ms(SIZE), ms(grace)), lambda: Times(SIZE, SIZE, 0)),
    "hopping": (
        lambda grace, _: TimeWindows.of_size_and_grace(ms(SIZE), ms(grace)).advance_by(ms(8)),
        lambda: Times(SIZE, 8, 0),
    ),
    "sessions": (
        lambda grace, _: SessionWindows.of_inactivity_gap_and_grace(ms(GAP), ms(grace)),
        lambda: Sessions(GAP, 0),
    ),
    "sessions of other gaps": (
        lambda grace, turn: SessionWindows.of_inactivity_gap_and_grace(ms(GAPS[turn]), ms(grace)),
        lambda: Sessions(GAPS[0], 0),
    ),
    "sliding": (
        lambda grace, _: SlidingWindows.of_time_difference_and_grace(ms(SIZE), ms(grace)),
        lambda: Sliding(SIZE, 0),
    ),
}
"""By kind, the windows of a grace and the number of the program, and the model."""
RESULTS = ("suppressed", "on close", "limited", "updates")
PROGRAMS = {
    "longer and back": (10, 90, 10),
    "shorter and back": (60, 0, 60),
}


def application(kind: str, turn: int, grace: int, results: str, retention: int | None) -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("key"), value=Json(Numbered))
    kept = None if retention is None else ms(retention)
    windowed = numbers.group_by_key().windowed_by(KINDS[kind][0](grace, turn), retention=kept)
    if results == "on close":
        windowed = windowed.emit_strategy(EmitStrategy.on_window_close())
    table = windowed.agg("sums", total=Sum("number"))
    if results in ("suppressed", "limited"):
        is_limited = results == "limited"
        limits = BufferConfig.max_records(9_999).shut_down_when_full() if is_limited else BufferConfig.unbounded()
        table = table.suppress(Suppressed.until_window_closes(limits).with_name("held"))
    if results == "updates":
        table.to_delta("out")
    else:
        table.to_stream().to_delta("out")
    return Application("graces", builder, commit_interval=timedelta(seconds=10))


def numbers(seed: int, first: int, count: int) -> list[tuple[str, int, int]]:
    """Keys, numbers and times: about one record a millisecond, many of them late by up to 150 ms."""
    rng = random.Random(seed)
    found = []
    for number in range(first, first + count):
        late = rng.choice([0, 0, rng.randint(0, 30), rng.randint(0, 150)])
        found.append((rng.choice("abc"), number, max(0, 400 + 2 * number - late)))
    return found


def rows(records: list[tuple[str, int, int]]) -> list[Row]:
    return [(key.encode(), json.dumps({"number": number}).encode(), time) for key, number, time in records]


@pytest.mark.slow
@pytest.mark.parametrize("graces", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(("results", "retention"), [*((each, None) for each in RESULTS), ("suppressed", 400)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_closes_once_under_programs_with_other_graces(tmp_path, kind, retention, results, graces):
    first = application(kind, 0, graces[0], results, retention)
    place = Place(first, Topics({("numbers", 0): []}), tmp_path, max_records=17)
    model: Model = KINDS[kind][1]()
    final, late, standing = [], 0, {}
    for turn, grace in enumerate(graces):
        place.application = application(kind, turn, grace, results, retention)
        records = numbers(turn, turn * 50, 50)
        place.topics.rows["numbers", 0] += rows(records)
        summary = place.run()
        model.grace = grace
        if isinstance(model, Sessions) and kind != "sessions":
            model.gap, model.closes_after_grace = GAPS[turn], GAPS[turn] + 1
        for key, number, time in records:
            updates, missed, closed = model.take(number, key, time)
            late += len(missed)
            final += [each[:4] for each in closed]
            for name, start, end, bits, _ in updates:
                standing[name, start, end] = bits
    assert late > 5
    assert summary.totals["late_records"] == late
    if results == "updates":
        wanted = sorted((*bounds, bits) for bounds, bits in standing.items() if bits is not None)
        assert sums(read_table(place.warehouse / "graces" / "out")) == wanted
    else:
        assert len(final) > 20
        assert sums(read_rows(place.warehouse / "graces" / "out")) == sorted(final)


@pytest.mark.parametrize("max_records", [1, 10])
def test_sessions_that_a_wider_gap_would_have_merged_are_merged_only_by_a_record_within_reach_of_both(
    tmp_path, max_records
):
    place = Place(application("sessions of other gaps", 0, 100, "updates", None), Topics(), tmp_path, max_records)
    place.topics.rows["numbers", 0] = rows([("a", 1, 120), ("a", 2, 130), ("a", 4, 150), ("a", 8, 160)])
    place.run()
    place.application = application("sessions of other gaps", 1, 100, "updates", None)  # 20 ms, not 8
    place.topics.rows["numbers", 0] += rows([("a", 16, 90), ("a", 32, 175), ("a", 64, 140)])
    place.run()
    assert sums(read_table(place.warehouse / "graces" / "out")) == [("a", 90, 90, 16), ("a", 120, 175, 111)]


@pytest.mark.parametrize("max_records", [1, 10])
def test_of_two_sessions_within_a_wider_gap_a_record_joins_the_one_within_its_own_reach(tmp_path, max_records):
    place = Place(application("sessions of other gaps", 0, 100, "updates", None), Topics(), tmp_path, max_records)
    place.topics.rows["numbers", 0] = rows([("a", 1, 130), ("a", 2, 145)])
    place.run()
    place.application = application("sessions of other gaps", 1, 100, "updates", None)
    place.topics.rows["numbers", 0] += rows([("a", 4, 100), ("a", 8, 160)])
    place.run()
    assert sums(read_table(place.warehouse / "graces" / "out")) == [
        *(("a", 100, 100, 4), ("a", 130, 130, 1), ("a", 145, 160, 10)),
    ]


def sums(found: Any) -> list[tuple[str, int, int, int]]:
    found = found.with_columns(found.get_column(name).dt.timestamp("ms") for name in ("window_start", "window_end"))
    return sorted(found.select("key", "window_start", "window_end", "total").iter_rows())
