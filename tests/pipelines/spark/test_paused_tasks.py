"""Single tasks and sub-topologies are paused and resumed while the others go on; against plain counts."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest

from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.threads import ThreadedPlace
from tests.waiting import wait_for
from weir import Application, Count, StreamsBuilder, String
from weir.state.commit.tables import read_table

FIRST, MORE = 20, 30
STAYS_S = 0.5


def rows(partition: int, begin: int, end: int) -> list:
    return [(b"user-%d" % partition, b"page", 1_000 * number) for number in range(begin, end)]


@pytest.fixture
def place(tmp_path) -> ThreadedPlace:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    clicks.group_by_key().agg("clicks", n=Count()).to_delta("counts")
    topics = Topics({("clicks", partition): rows(partition, 0, FIRST) for partition in range(2)})
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=20))
    return ThreadedPlace(application, topics, tmp_path, max_records=10)


def counts(place: ThreadedPlace) -> dict[str, int]:
    frame = pl.DataFrame(read_table(place.warehouse / "shop" / "counts")).sort("_epoch", "_seq", maintain_order=True)
    return dict(frame.select("user", "n").rows())


def answer(place: ThreadedPlace, kind: str, **arguments: str) -> tuple[str, bool]:
    asked = place.desk.ask(kind, **arguments)
    wait_for(lambda: asked in place.desk.answers, "it is answered", 30)
    return place.desk.answers[asked]


@pytest.mark.parametrize(("wanted", "paused"), [("0_0", {0}), ("0", {0, 1})])
def test_what_is_paused_reads_nothing_until_it_is_resumed_and_the_others_go_on(place, wanted, paused):
    run, stop = place.begin(until_caught_up=False)
    try:
        wait_for(lambda: place.positions("clicks") == [FIRST] * 2, "all is committed", 30)
        said, failed = answer(place, "pause", tasks=wanted)
        assert said.startswith(f"paused {', '.join(f'0_{each}' for each in sorted(paused))} after epoch")
        assert not failed
        for partition in range(2):
            place.topics.rows["clicks", partition] += rows(partition, FIRST, MORE)
        wanted_now = [FIRST if partition in paused else MORE for partition in range(2)]
        wait_for(lambda: place.positions("clicks") == wanted_now, "the others have gone on", 30)
        with pytest.raises(AssertionError):
            wait_for(lambda: place.positions("clicks") != wanted_now, "what is paused goes on", STAYS_S)
        assert answer(place, "resume", tasks="0_0") == ("running: 0_0", False)
        wait_for(lambda: place.positions("clicks")[0] == MORE, "it goes on", 30)
        assert answer(place, "resume") == ("running", False)
        wait_for(lambda: place.positions("clicks") == [MORE] * 2, "all go on", 30)
        said, failed = answer(place, "pause", tasks="7_7")
        assert failed
        assert "there is no task '7_7'; the tasks are 0_0, 0_1" in said
        answer(place, "pause", tasks="0_1")
    finally:
        stop.set()
        run.result(60)
    assert counts(place) == {f"user-{partition}": MORE for partition in range(2)}
