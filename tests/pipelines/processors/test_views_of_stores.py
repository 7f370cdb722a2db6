"""The stores of processors under the test driver, each with its own types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tests.pipelines.shop import run_over
from weir import (
    Application,
    Int64,
    KeyValueStore,
    ListStore,
    Processor,
    SessionStore,
    StateReader,
    StreamsBuilder,
    String,
    VersionedKeyValueStore,
    Windowed,
    WindowStore,
)
from weir.testing import TopologyTestDriver

NINE, HOUR = datetime(2026, 1, 1, 9, tzinfo=UTC), timedelta(hours=1)


@dataclass(frozen=True)
class Route:
    origin: str
    flight: int


class Keeps(Processor[str, int, str, str]):
    stores = (
        KeyValueStore("routes", key=Route, value=float),
        WindowStore("hours", key=str, value=int, size=HOUR, retention=3 * HOUR),
        SessionStore("visits", key=str, value=int, retention=HOUR),
        VersionedKeyValueStore("prices", key=str, value=int, history_retention=HOUR),
        ListStore("all", key=str, value=Route),
    )

    def init(self, context):
        self.context = context

    def process(self, record):
        routes, hours, visits, prices, all_of = (self.context.state_store(each.name) for each in self.stores)
        routes.put(Route(record.key, record.value), 0.5)
        hours.put(record.key, record.value, record.timestamp)
        visits.put(Windowed(record.key, record.timestamp, record.timestamp + HOUR), record.value)
        prices.put(record.key, record.value, record.timestamp)
        all_of.append(record.key, Route(record.key, record.value))

    def on_timer(self, record):
        raise AssertionError("no timer is set")


def application() -> Application:
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("n")).process(Keeps, name="keeps")
    return Application("views", builder)


@pytest.fixture
def driver():
    with TopologyTestDriver(application()) as driver:
        driver.create_input_topic("numbers", start=NINE, auto_advance=HOUR).pipe_key_value_list(
            [("ann", 1), ("ann", 2)]
        )
        yield driver


def test_every_kind_of_store_shows_its_own_keys_and_values(driver):
    assert driver.get_key_value_store("routes").get(Route("ann", 2)) == 0.5
    assert driver.get_key_value_store("routes").all() == [(Route("ann", 1), 0.5), (Route("ann", 2), 0.5)]
    assert driver.get_window_store("hours").fetch("ann", NINE + HOUR) == 2
    assert driver.get_session_store("visits").fetch("ann") == [(Windowed("ann", NINE + HOUR, NINE + 2 * HOUR), 2)]
    assert driver.get_versioned_store("prices").get("ann", as_of=NINE) == 1
    assert driver.get_list_store("all").get("ann") == [{"origin": "ann", "flight": 1}, {"origin": "ann", "flight": 2}]


def test_stores_of_processors_can_be_queried(tmp_path):
    app, nine_ms = application(), round(NINE.timestamp() * 1000)
    rows = [(b"ann", n.to_bytes(8, "big"), nine_ms + hours * 3_600_000) for n, hours in ((1, 0), (2, 1))]
    run_over(app, {("numbers", 0): rows}, tmp_path / ".weir")
    reader = StateReader(tmp_path / ".weir", app)
    assert reader.get("routes", Route("ann", 2)).rows["value"].to_list() == [0.5]
    assert reader.windows("hours", "ann", NINE + HOUR).rows["value"].to_list() == [2]
    assert reader.sessions("visits", "ann").rows["value"].to_list() == [2]
    assert reader.get("prices", "ann", as_of=NINE).rows["value"].to_list() == [1]
    assert reader.prefix("all", "ann").rows["flight"].to_list() == [1, 2]


def test_a_store_of_another_kind_is_named(driver):
    with pytest.raises(LookupError, match=r"holds lists; call get_list_store\('all'\)"):
        driver.get_key_value_store("all")
    with pytest.raises(LookupError, match="holds the timers of keeps, which only the processor sees"):
        driver.get_key_value_store("keeps-timers")
    with pytest.raises(LookupError, match="there is no list store 'routes'; the topology has all"):
        driver.get_list_store("routes")


def test_where_no_store_is_of_the_kind_the_message_says_so():
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("n")).to_delta("out")
    with TopologyTestDriver(Application("none", builder)) as driver:
        for look, kind in ((driver.get_list_store, "list"), (driver.get_key_value_store, "key-value")):
            with pytest.raises(LookupError, match=f"no {kind} store 'x'; the topology has no store of this kind"):
                look("x")
