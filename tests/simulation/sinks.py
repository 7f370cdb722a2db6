"""The sinks of a world, beside its outputs in Delta: which there are, who decides about them, and what they have to
have at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from operator import itemgetter
from sqlite3 import connect
from typing import Any

import msgspec

from tests.pipelines.order.description import Program, Value
from tests.pipelines.order.running import Result
from tests.simulation.delta_log import live_files
from tests.simulation.invariants import Invariants
from tests.simulation.ledger import Deliveries, Ledger, Row
from tests.simulation.outcome import DifferenceError
from tests.simulation.outside import Endpoint, Outside
from tests.simulation.place import SimulatedPlace
from tests.simulation.publishers import SimulatedPublishers, publishing_substitutes
from tests.simulation.scheduler import Scheduler
from weir import String
from weir.pipelines.publishing.state import Decision
from weir.pipelines.sinks.sql import SqlTable
from weir.state.commit.outbox import outbox_name
from weir.state.commit.refused import Refused

RULES = {"kafka": 24, "sql": 25, "own": 35}
"""The kinds of sinks, and the rules of docs/protocol.md that they follow."""
MOST = 2
"""So many sinks at most."""


class Sinks:
    """Those of one world; perhaps none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._rng = scheduler, scheduler.rng
        self._are_drawn = self._rng.random() < 0.3
        self.outside = Outside(scheduler)
        self.most_waiting_bytes = self._rng.choice([None, None, 500, 5_000]) if self._are_drawn else None
        """Reading stops while more waits for them."""
        self._places: dict[str, int] = {}
        """By sink, the place of the output that it is beside."""
        self._newest: SimulatedPublishers | None = None

    def __str__(self) -> str:
        limit = f", at most {self.most_waiting_bytes} bytes" if self.most_waiting_bytes is not None else ""
        return f"sinks {', '.join(self._places)}{limit}; {self.outside}"

    @property
    def are_there(self) -> bool:
        """Whether the world has any."""
        return bool(self._places)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the application."""
        return {"on_delivery_error": self._rng.choice(["wait", "dead_letter"])} if self._are_drawn else {}

    def add(self, place: int, output: Any) -> None:
        """Add a sink for what an output of the program gets, or none."""
        if not self._are_drawn or len(self._places) == MOST or self._rng.random() < 0.3:
            return
        is_windowed = output._node.record.is_windowed
        kind = self._rng.choice(["sql", "own"] if is_windowed else ["kafka", "sql", "own"])
        name = f"out{place}-{kind}"
        self._places[name] = place
        match kind:
            case "kafka":
                output.to(name, key=String("key"))
            case "sql":
                output.to_sql(f"out{place}", name=name)
            case "own":
                stream = output if hasattr(output, "to_sink") else output.to_stream()
                stream.to_sink(Endpoint(self.outside, name), name=name, max_records=self._rng.choice([1, 3, 20]))

    @contextmanager
    def watching(self, place: SimulatedPlace, invariants: Invariants) -> Iterator[None]:
        """Within the block sinks are published to, and what they get is checked."""
        self._place, self._require = place, invariants._require
        if not self._places:
            yield
            return
        ledger = Ledger(place, invariants)
        for name in self._places:
            self.outside.deliveries[name] = Deliveries(ledger, name, RULES[name.partition("-")[2]])
        with publishing_substitutes(self._scheduler, self.outside), ledger.watching():
            yield

    def publishers(self, place: SimulatedPlace) -> SimulatedPublishers:
        """Those of a driver that begins; they have nothing to do if there are no sinks."""
        self._newest = SimulatedPublishers(place, self._require)
        return self._newest

    def decide(self) -> None:
        """What a person does who looks now and then: go on behind a row that is refused, or have it sent again."""
        for _ in range(self._rng.randrange(6)):
            self._scheduler.sleep(self._rng.uniform(0.0, 3.0))
            for state in self._newest.states if self._newest else ():
                action = "skip" if state.awaits == "skip" else "retry" if state.refused_rows else None
                if action is not None and self._newest is not None and self._rng.random() < 0.7:
                    self._scheduler.note(f"decides to {action} {state.sink}")
                    self._newest.decide(Decision(sink=state.sink, action=action))

    def left(self) -> str:
        """What of the rows of which sink is still to be published, or to leave its outbox; empty if nothing is."""
        return "; ".join(f"{name}: {left}" for name in self._places if (left := self._left(name)))

    def require_whole(self, wanted: Result, program: Program) -> None:
        """Raise ``DifferenceError`` if a sink lacks rows, or has others than the model."""
        for name, place in self._places.items():
            deliveries = self.outside.deliveries[name]
            found = [_row(row) for row in deliveries.rows]
            has_times = not name.endswith("sql")
            if place in wanted.facts:
                facts = Counter[Any]()
                for (key, value, ts), count in wanted.facts[place].items():
                    facts[key, value, ts if has_times else None] += count
                _same(f"facts of sink {name}", Counter(found), facts)
            else:
                standing = {
                    key: (value, ts if has_times else None) for key, (value, ts) in wanted.standing[place].items()
                }
                if name.endswith("own") and program.is_versioned(program.steps[place].parent):
                    found.sort(key=itemgetter(2))  # a stream of its changes has those of old rows, too
                newest = {key: (value, ts) for key, value, ts in found}
                found_standing = {key: row for key, row in newest.items() if row[0] is not None}
                _same(f"standing rows of sink {name}", found_standing, standing)
            if not has_times:
                self._require_table(name, place)

    def _require_table(self, name: str, place: int) -> None:
        """The table of a sink has the rows that were delivered, or the newest of each key."""
        deliveries, topology = self.outside.deliveries[name], self._place.application.topology
        (sink,) = (sink for sink in topology.outside_sinks if sink.name == name)
        assert isinstance(sink, SqlTable)
        rows = deliveries.rows
        if sink.key:
            if deliveries.refused:
                return  # what was sent again is older than what came meanwhile
            rows = [row for row in {_key(row): row for row in rows}.values() if not row["_deleted"]]
        with closing(connect(self._place.folder / "outside.sqlite")) as database:
            found = database.execute(f'SELECT key, num, word FROM "out{place}"').fetchall()
        _same(f"the table of {name}", Counter(found), Counter((row["key"], row["num"], row["word"]) for row in rows))

    def _left(self, name: str) -> str:
        application, deliveries = self._place.application, self.outside.deliveries[name]
        folder = self._place.warehouse / application.id
        if live_files(folder / outbox_name(name)):
            return "its outbox is not empty"
        if count := Refused(folder, name, application.id).count():
            return f"{count} rows are aside"
        return f"it lacks the rows {deliveries.missing}" if deliveries.missing else ""


def _row(row: Row) -> tuple[Any, Value | None, int | None]:
    """A row as the model has it: key, value, time."""
    if "topic" in row:
        key, text = row["key"], row["value"]
        return key and key.decode(), None if text is None else Value(**msgspec.json.decode(text)), row["time_ms"]
    value = None if row["_deleted"] else Value(row["num"], row["word"])
    return _key(row), value, row.get("_ts")


def _key(row: Row) -> Any:
    return (row["key"], row["window_start"], row["window_end"]) if "window_start" in row else row["key"]


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise DifferenceError(f"{what}: {found}, and not {wanted}")
