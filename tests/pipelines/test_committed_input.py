"""The committed offsets that a store answers for, behind repartitions too, while rows are on their way (KIP-892)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Int64, Query, QueryError, StateReader, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations import registry
from weir.state.commit.protocol import newest_commit
from weir.state.engine.cache import TaskStoreCache
from weir.state.types import IsolationLevel

NEWEST = IsolationLevel.READ_UNCOMMITTED


def application() -> Application:
    """Events counted by user, and behind one and two repartitions by their kind; visits only by their kind."""
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=String("kind"))
    visits = builder.stream("visits", key=String("user"), value=String("kind"))
    events.group_by_key().agg("by_user", n=Count()).to_delta("users")
    kinds = events.merge(visits).group_by("kind").agg("by_kind", n=Count())
    kinds.to_delta("kinds")
    kinds.to_stream().group_by("n").agg("by_count", times=Count()).to_delta("counts")
    builder.stream("others", key=String("id"), value=Int64("n")).group_by_key().agg("apart", n=Count()).to_delta(
        "apart"
    )
    return Application("kinds", builder, commit_interval=timedelta(milliseconds=1))


def records(count: int, seed: int) -> list:
    """The higher the seed, the denser in time: rows of one partition wait for those of the other."""
    chance = random.Random(seed)
    return [
        (b"u%d" % chance.randrange(20), b"k%d" % chance.randrange(6), 1_000 + 10 * number // (1 + 5 * seed))
        for number in range(count)
    ]


class Kinds(Place):
    @classmethod
    def over(cls, folder: Path) -> Kinds:
        topics = {
            (topic, number): records(40, number + 2 * (topic == "visits"))
            for topic in ("events", "visits")
            for number in (0, 1)
        }
        return cls(application(), Topics(topics | {("others", 0): [(b"a", bytes(8), 1)]}), folder, max_records=7)

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "kinds"

    @property
    def reader(self) -> StateReader:
        return StateReader(self.folder, self.application)

    def counted(self, position: dict[str, dict[int, int]]) -> Counter:
        """How many records of each kind there are before ``position``."""
        return Counter(
            value.decode()
            for topic in ("events", "visits")
            for number in (0, 1)
            for _, value, _ in self.topics.rows[topic, number][: position[topic][number]]
        )


@pytest.fixture
def place(tmp_path):
    yield Kinds.over(tmp_path)
    TaskStoreCache.close_all()


def test_a_store_behind_repartitions_answers_with_the_offsets_of_the_topics_before_them(place):
    place.run()
    everything = {"events": {0: 40, 1: 40}, "visits": {0: 40, 1: 40}}
    for store in ("by_kind", "by_count"):
        assert place.reader.committed_position(store) == everything
        assert place.reader.committed_offset(store, "visits", 1) == 40
        assert place.reader.committed_offset(store, "others", 0) is None
        assert place.reader.range(store).position == everything
        assert place.reader.range(store, query=Query(isolation=NEWEST)).position == {}
    assert place.reader.committed_position("apart") == {"others": {0: 1}}
    assert place.reader.range("by_kind", query=Query(at_least={"events": {1: 40}})).rows.height == 6
    with pytest.raises(QueryError, match="events-1 is at 40, not 41"):
        place.reader.range("by_kind", query=Query(at_least={"events": {1: 41}}))
    ask = Query(at_least={"events": {1: 40}}, isolation=NEWEST)
    with pytest.raises(QueryError, match=r"ask only .*, or with IsolationLevel\.READ_COMMITTED"):
        place.reader.range("by_kind", query=ask)
    assert place.reader.range(
        "by_kind", query=Query(at_least=ask.at_least, isolation=IsolationLevel.READ_COMMITTED)
    ).rows.height


def test_no_record_before_the_position_is_missing_while_rows_are_on_their_way(place):
    """At every commit: the counts contain at least what a plain count up to the position gives, and at most what one
    of all that was read gives."""
    read = {topic: {0: 40, 1: 40} for topic in ("events", "visits")}
    seen = set[tuple[bool, bool]]()

    def look(step: str) -> None:
        if step != "pivot appended":
            return
        TaskStoreCache.close_all()  # a process opens a store once
        record = newest_commit(place.warehouse, "kinds")
        try:
            answer = place.reader.range("by_kind")
        except QueryError:
            return  # no task of it has run yet
        if set(map(len, answer.position.values())) != {2}:
            return  # one of its tasks has no commit yet
        found = Counter(dict(answer.rows.select("kind", "n").rows()))
        least, most = place.counted(answer.position), place.counted(read)
        assert least <= found <= most
        seen.add((bool(record.pending_blobs), least == found))

    place.driver(look).run(Event(), until_caught_up=True)
    assert seen >= {(True, True), (False, True)}, "the position is no lower than it has to be"
    TaskStoreCache.close_all()
    assert place.reader.committed_position("by_kind") == read


def test_the_command_line_shows_the_position(place, monkeypatch):
    place.run()
    settings = Settings(dir=place.folder)
    monkeypatch.setattr(registry, "registered_application", lambda *_: place.application)
    monkeypatch.setattr("weir.pipelines.cli.query.load_settings", lambda *_: settings)
    shown = CliRunner().invoke(app, ["query", "kinds", "by_kind", "--position", "--json"])
    assert shown.exit_code == 0, shown.output
    assert '"visits"' in shown.output
    shown = CliRunner().invoke(app, ["query", "kinds", "apart", "--position"])
    assert "others" in shown.output, shown.output
