"""A reader that is added beside a suppression of final results never costs a window its result without a word."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pipelines.backfill.inline import begun_whole, run_on, run_shadow
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, StreamsBuilder, String, Suppressed, TimeWindows, read_table
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.spark.admission import change_of
from weir.pipelines.spark.errors import TopologyChangedError
from weir.pipelines.topology.changes import TopologyChange

FIRST_MS = 1_700_000_000_000
UNTIL_CLOSED = Suppressed.until_window_closes(BufferConfig.unbounded())
REASON = "because the windows that are open in 'n' would have no final result"


def program(*, has_reader: bool, name: str | None = None) -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=String("item"))
    windows = TimeWindows.of_size_and_grace(timedelta(seconds=10), timedelta(0))
    counts = orders.group_by_key().windowed_by(windows).count("n")
    counts.suppress(UNTIL_CLOSED.with_name(name) if name else UNTIL_CLOSED).to_delta("final")
    if has_reader:
        counts.to_stream().to_delta("updates")
    return Application("shop", builder)


def place_of(folder, **options) -> Place:
    """Two windows are open."""
    rows = [(b"ann", b"tea", FIRST_MS), (b"bob", b"jam", FIRST_MS + 1)]
    place = Place(program(**options), Topics({("orders", 0): rows}), folder)
    place.run()
    return place


def close_windows(place: Place) -> None:
    place.topics.rows["orders", 0].append((b"ann", b"rum", FIRST_MS + 20_000))


def final(place: Place) -> list[tuple[str, int]]:
    return sorted(read_table(place.warehouse / "shop" / "final").select("user", "count").rows())


@pytest.mark.parametrize("name", [None, "held"])
def test_an_added_reader_is_refused_while_windows_are_held_in_the_aggregation(tmp_path, name):
    place = place_of(tmp_path, has_reader=False, name=name)
    place.application = program(has_reader=True, name=name)
    close_windows(place)
    with pytest.raises(TopologyChangedError, match=REASON):
        place.run()
    place.application = program(has_reader=False, name=name)
    place.run()
    assert final(place) == [("ann", 1), ("bob", 1)], "the old program goes on"


def test_a_backfill_of_everything_has_the_results(tmp_path):
    place, new = place_of(tmp_path, has_reader=False), program(has_reader=True)
    shadow = run_on(place, run_shadow(place, begun_whole(place, new), new), new)
    swap_everything(place.warehouse, new, shadow)
    place.application = new
    close_windows(place)
    place.run()
    assert final(place) == [("ann", 1), ("bob", 1)]


def test_a_loss_that_is_accepted_is_that_of_the_open_windows(tmp_path):
    place = place_of(tmp_path, has_reader=False)
    place.application = program(has_reader=True)
    place.run(accept_state_loss=True)
    place.topics.rows["orders", 0].append((b"eve", b"tea", FIRST_MS + 2))
    close_windows(place)
    place.run()
    assert final(place) == [("eve", 1)]


def test_a_reader_that_is_left_out_costs_nothing(tmp_path):
    place = place_of(tmp_path, has_reader=True)
    place.application = program(has_reader=False)
    close_windows(place)
    place.run()
    assert final(place) == [("ann", 1), ("bob", 1)]


@pytest.mark.parametrize("name", [None, "held"])
def test_a_reader_that_is_taken_out_costs_no_result_and_the_plan_says_nothing_else(tmp_path, name):
    place = place_of(tmp_path, has_reader=True, name=name)
    place.application = program(has_reader=False, name=name)
    notes = [note for store in change_of_start(place).stores for note in store.notes]
    assert not [note for note in notes if "suppression is gone" in note]
    close_windows(place)
    place.run()
    assert final(place) == [("ann", 1), ("bob", 1)]


def test_the_plan_of_an_added_reader_does_not_say_that_the_suppression_is_gone(tmp_path):
    place = place_of(tmp_path, has_reader=False)
    place.application = program(has_reader=True)
    notes = [note for store in change_of_start(place).stores for note in store.notes]
    assert [note for note in notes if "would have no final result" in note]
    assert not [note for note in notes if "suppression is gone" in note]


def change_of_start(place: Place) -> TopologyChange:
    """What ``weir plan`` shows."""
    committed = place.commit_before()
    application = place.application.over(committed)
    return change_of(application.topology, place.warehouse / "shop", committed, place.topics.partition_counts())
