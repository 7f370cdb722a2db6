"""Dead letters that are processed again are taken once, whatever dies: the outcome is that of a plain model.

The model takes all records, without those that fail; then, with a corrected program and the same state, the letters.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import polars as pl
import pytest

from tests.pipelines.processors.runs import CrashesAt, disturbed_run, written
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.tasks.letters import read_dead_letters
from tests.pipelines.tasks.poison import Number, Program, RunningSum, numbers, plain, raw
from weir import Application, Int64, Json, StreamsBuilder, String, Sum, TimeWindows
from weir.pipelines.spark import planner
from weir.pipelines.tasks.replay import Replayed

NONE = (1_000_003, 1_000_002)
"""No number that fails."""


def mend(program: Program) -> None:
    for part in program.parts:
        for step in part:
            step.failing = NONE


def replay(place: Place, *ids: str, crashes: random.Random | None = None) -> Replayed:
    """Ask for it until a driver has committed all; with ``crashes`` drivers die meanwhile."""
    for _ in range(crashes.choice([1, 3]) if crashes else 0):
        place.desk.ask("replay", ids=json.dumps(ids))
        try:
            place.run(CrashesAt(crashes.randrange(1, 30)))
        except Exception:
            if crashes.random() < 0.3:
                place.state_folder.rename(place.folder / f"lost {crashes.random()}")
    request = place.desk.ask("replay", ids=json.dumps(ids))
    place.run()
    answer, is_failed = place.desk.answers[request]
    assert not is_failed
    return msgspec.json.decode(answer, type=Replayed)


def letters(place: Place) -> pl.DataFrame:
    return read_dead_letters(place.warehouse / place.application.id)


@pytest.mark.parametrize("seed", range(12))
def test_letters_are_taken_once_after_all_that_their_task_has_taken(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "MOST_LETTERS", 4)
    chance = random.Random(seed)
    while len((program := Program.random(chance)).tasks()) > 1:
        pass
    rows = numbers(chance, 100)
    place = disturbed_run(program.application(on_processing_error="dead_letter"), raw(rows), tmp_path, seed)
    wanted, (failed,) = program.model(rows)
    assert letters(place)["offset"].to_list() == [offset for offset, *_ in failed]

    mend(program)
    place.application = program.application()
    replay(place, crashes=chance)
    more, (none,) = program.model([rows[offset] for offset, *_ in failed])
    assert none == []
    assert [row[:2] for row in written(place, "out", "key", "n")] == wanted + more
    assert letters(place)["replayed"].to_list() == ["processed"] * len(failed)

    assert replay(place).ids == ()  # none is left
    assert [row[:2] for row in written(place, "out", "key", "n")] == wanted + more


def test_a_letter_that_fails_again_is_one_again_and_the_others_are_processed(tmp_path):
    program = Program([[RunningSum(NONE, name="sums")]])
    place = Place(program.application(on_error="dead_letter"), Topics({("numbers", 0): []}), tmp_path, max_records=3)
    broken = (b"bob", b"{", 5, [("trace", b"17")])
    place.topics.rows["numbers", 0] = [*raw([("ann", 1)]), broken, (b"ann", b'{"n": "2"}', 6), *raw([("ann", 4)])]
    place.run()

    @dataclass
    class Mended:
        """Json that takes numbers which are text, too."""

        plain: Json

        def row_type(self, default_name):
            return self.plain.row_type(default_name)

        def decode(self, items, row_type):
            text = items.cast(pl.String).str.replace_all(r': "(\d+)"', ": $1")
            return self.plain.decode(text.cast(pl.Binary), row_type)

        def encode(self, item):
            return self.plain.encode(item)

    builder = StreamsBuilder()
    stream = builder.stream("numbers", key=String("key"), value=Mended(Json(Number)))
    stream.group_by_key().agg("sums", n=Sum("n")).to_stream().map_values(plain).to_delta("out")
    place.application = Application("numbers", builder)
    assert len(replay(place).ids) == 2
    assert [row[:2] for row in written(place, "out", "key", "n")] == [("ann", 1), ("ann", 5), ("ann", 7)]
    assert place.run().totals["dead_letters"] == 3

    first, again, processed = letters(place).sort("offset", "_epoch").rows(named=True)
    assert (first["offset"], processed["offset"], processed["replayed"]) == (1, 2, "processed")
    assert first["replayed"] == f"failed again, as {again['id']}"
    assert (again["replayed"], again["value"], again["stage"]) == (None, b"{", "deserialization")
    assert again["headers"] == first["headers"] == [{"key": "trace", "value": b"17"}]
    assert replay(place, again["id"]).ids == (again["id"],)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_failed_behind_a_repartition_are_processed_again_with_all_their_columns(seed, tmp_path):
    chance = random.Random(seed)

    def program(failing: int) -> Application:
        def fold(key: str, value: Number, total: int) -> int:
            if value.n % 10 == failing:
                raise ValueError(value.n)
            return total + value.n

        builder = StreamsBuilder()
        stream = builder.stream("numbers", key=String("key"), value=Json(Number)).repartition("moved")
        stream.map_values(plain).group_by_key().aggregate("sums", int, fold).to_stream().map_values(plain).to_delta(
            "out"
        )
        return Application("numbers", builder, on_processing_error="dead_letter")

    rows = numbers(chance, 90)
    place = disturbed_run(program(3), raw(rows), tmp_path, seed)
    failed = [n for _, n in rows if n % 10 == 3]
    assert letters(place).height == len(failed)
    place.application = program(-1)
    assert replay(place, crashes=chance).misfits == {}
    newest = {key: n for key, n, _ in written(place, "out", "key", "n")}
    assert newest == {key: sum(n for at, n in rows if at == key) for key in newest}
    assert set(letters(place)["replayed"]) == {"processed"}


def test_a_letter_has_the_time_of_its_record_so_it_may_be_late(tmp_path):
    def program(failing: bool) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("numbers", key=String("key"), value=Int64("n"))
        if failing:
            stream = stream.filter(
                pl.when(pl.col("n") == 7).then(pl.lit("x")).otherwise(pl.lit("1")).cast(pl.Int64) > 0
            )
        windows = TimeWindows.of_size_with_no_grace(timedelta(seconds=1))
        stream.group_by_key().windowed_by(windows).agg("sums", n=Sum("n")).to_delta("out")
        return Application("numbers", builder, on_processing_error="dead_letter")

    rows = [(b"ann", n.to_bytes(8, "big"), ms) for n, ms in ((1, 0), (7, 100), (2, 5_000), (7, 5_100))]
    place = Place(program(True), Topics({("numbers", 0): rows}), tmp_path)
    place.run()
    place.application = program(False)
    replay(place)
    found = written(place, "out", "key", "n")
    assert [n for _, n, _ in found] == [1, 2, 9]
    assert place.run().totals["late_records"] == 1


def test_letters_that_the_program_has_no_use_for_are_left(tmp_path):
    def program(*topics: str) -> Application:
        builder = StreamsBuilder()
        for topic in topics:
            builder.stream(topic, key=String("key"), value=Json(Number)).to_delta(f"of_{topic}")
        return Application("numbers", builder, on_error="dead_letter")

    topics = Topics({("numbers", 0): [(b"ann", b"{", 1)], ("others", 0): []})
    place = Place(program("numbers", "others"), topics, tmp_path)
    place.run()
    place.application = program("others")
    answer = replay(place)
    assert (answer.ids, answer.misfits, answer.waiting) == ((), {"numbers": 1}, 0)
    assert letters(place)["replayed"].to_list() == [None]
