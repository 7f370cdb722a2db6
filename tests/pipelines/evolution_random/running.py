"""Runs of a chain of programs by the real driver in this process, beside the model, with kills and lost disks."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.dying import KilledError
from tests.pipelines.evolution_random.changing import a_program, changed, topics_of
from tests.pipelines.evolution_random.model import Record, World, columns_out, keys_out, named, way_out
from tests.pipelines.evolution_random.programs import TOPICS, Piece, Program, application
from tests.pipelines.order.model import partition_of
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.spark.errors import TopologyChangedError
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows, read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.errors import TableModeError, TableSchemaError
from weir.state.types import StoreSpec

REFUSALS = {
    "rebuilt": TopologyChangedError,
    "renamed": TopologyChangedError,
    "column renamed": TopologyChangedError,
    "output": (TableSchemaError, TableModeError),
}


@dataclass
class Chain:
    """Three to five programs, one after the other, over one place."""

    seed: int
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    """What happened: changes, fates, refusals, kills, lost disks."""
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.partitions = self.rng.choice([1, 1, 2, 3])
        self.program = a_program(self.rng)
        self.world = World(self.partitions)
        rows: dict[tuple[str, int], list[Any]] = {
            (topic, number): [] for topic in TOPICS for number in range(self.partitions)
        }
        limit = self.rng.choice([7, 20, 1000])
        self.place = Place(application(self.program), Topics(rows), self.folder, max_records=limit)
        self.records: dict[tuple[str, int], list[Record]] = {each: [] for each in rows}
        self.taken: dict[tuple[str, int], int] = dict.fromkeys(rows, 0)
        self.earlier: dict[str, Piece] = {}
        self.specs: dict[str, StoreSpec] = {}
        self.accepts_loss = False
        """Whether the program was refused and is started with ``--accept-state-loss``."""
        self.time = 1_000

    @property
    def app_folder(self) -> Path:
        return self.place.warehouse / "evolving"

    def run(self) -> None:
        for number in range(self.rng.randint(3, 5)):
            if number:
                self._change()
            self.story.append(f"runs {self.program}")
            self._append_records()
            self._run_program()
            self.check()
        self.counts.update({f"fate: {name}": count for name, count in self.world.fates.items()})

    # Programs

    def _change(self) -> None:
        program, told = changed(self.rng, self.program, self.earlier)
        self.counts.update(f"change: {name}" for name in told)
        self.story.append(f"changes: {told}")
        self.accepts_loss = False
        while refusal := self.world.refusal(program, accepts_loss=self.accepts_loss):
            self.counts[f"refused: {refusal}"] += 1
            self._require_refused(program, refusal)
            if refusal == "output":
                program = self._another_output(program)
            elif self.rng.random() < 0.4 and not self.world.has_other_keys(program):
                self.accepts_loss = True
                self.counts["accepted losses"] += 1
                self.story.append("accepts the loss")
            else:
                program = self.program
        self.program = program

    def _require_refused(self, program: Program, refusal: str) -> None:
        self.place.application = application(program)
        try:
            self.place.driver(accept_state_loss=self.accepts_loss)
        except REFUSALS[refusal]:
            return
        raise AssertionError(f"not refused ({refusal}): {program}")

    def _another_output(self, program: Program) -> Program:
        """The way out of a refused output: a table of another name."""
        for piece in program.pieces:
            output = self.world.outputs.get(piece.output)
            if output and (
                output.way != way_out(piece)
                or output.keys != keys_out(piece)
                or not output.columns <= columns_out(piece, program.fields)
            ):
                version = max(int(name.rpartition("out")[2]) for name in self.world.outputs) + 1
                program = program.with_piece(replace(piece, version=version))
        return program

    # Runs

    def _run_program(self) -> None:
        self.earlier |= {piece.name: piece for piece in self.program.pieces}
        self.place.application = application(self.program)
        self.specs |= {
            store.name: store for each in self.place.application.topology.sub_topologies for store in each.stores
        }
        if self.rng.random() < 0.25:
            self.counts["lost disks"] += 1
            self.story.append("loses its disk")
            TaskStoreCache.close_all()
            for data in self.place.state_folder.glob("*/*/data.mdb"):
                data.unlink()
        committed = newest_commit(self.place.warehouse, "evolving")
        before = committed.generation if committed else 0
        self.world.start(self.program)
        if self.rng.random() < 0.4:
            kill = _killing_after(self.rng.randint(2, 60))
            try:
                self.place.run(kill, accept_state_loss=self.accepts_loss)
            except KilledError:
                self.counts["kills"] += 1
                self.story.append("is killed")
                found = newest_commit(self.place.warehouse, "evolving")
                if found and found.generation > before and not found.pending_blobs and self.rng.random() < 0.5:
                    self.counts["changed after a kill"] += 1
                    positions = {
                        (topic, number): offset
                        for task in found.tasks.values()
                        for topic, offsets in task.positions.items()
                        for number, offset in offsets.items()
                    }
                    self._take(positions)
                    self._refresh()
                    self._change()
                    self.story.append(f"goes on with {self.program}")
                    self.earlier |= {piece.name: piece for piece in self.program.pieces}
                    self.place.application = application(self.program)
                    self.specs |= {
                        store.name: store
                        for each in self.place.application.topology.sub_topologies
                        for store in each.stores
                    }
                    self.world.start(self.program)
        self.place.run(accept_state_loss=self.accepts_loss)
        self._refresh()
        self._take({at: len(records) for at, records in self.records.items()})

    def _refresh(self) -> None:
        """Bring the tables of upserts up to date, as a run does once it has ended."""
        refresh_at_rest(self.app_folder, application_tables(self.place.application.topology), "evolving")

    def _take(self, upto: dict[tuple[str, int], int]) -> None:
        """The model takes the records of the program's topics, in the order of their merge times."""
        topics = set().union(*(topics_of(piece) for piece in self.world.program.pieces))
        keyed = []
        for at, end in upto.items():
            if at[0] in topics:
                merge_time = -1
                for place, record in enumerate(self.records[at][self.taken[at] : end]):
                    merge_time = max(merge_time, record.ts)
                    keyed.append(((merge_time, at, place), record))
                self.taken[at] = max(end, self.taken[at])
        for _, record in sorted(keyed, key=lambda pair: pair[0]):
            self.world.take(record)
        self.world.end()

    def _append_records(self) -> None:
        """Records of each topic, out of order by up to several windows; no two partitions have a merge time in common,
        and the first record of each is in order."""
        newest: dict[tuple[str, int], int] = {}
        for _ in range(self.rng.randint(30, 80)):
            topic = self.rng.choice(["clicks", "clicks", *TOPICS])
            word = self.rng.choice("vwxyz")
            key = word if topic == "words" else f"user-{self.rng.randint(0, 6)}"
            at = topic, partition_of(key, self.partitions)
            self.time += self.rng.randint(1, 4)
            ts = self.time
            if at in newest and self.rng.random() < 0.3:
                ts = max(0, newest[at] - self.rng.randint(1, 70))
            newest[at] = max(ts, newest.get(at, 0))
            value: dict[str, Any] | None = {
                "num": self.rng.randint(0, 50),
                "word": word if topic == "words" else self.rng.choice("vwxyz"),
                "more": self.rng.choice([None, 1, 2]),
                "tag": self.rng.choice([None, "t", "u"]),
            }
            if topic in ("users", "words") and self.rng.random() < 0.2:
                value = None
            self.records[at].append(Record(topic, at[1], key, value, ts))
            self.place.topics.rows[at].append((key.encode(), None if value is None else json.dumps(value).encode(), ts))

    # What is there

    def check(self) -> None:
        committed = newest_commit(self.place.warehouse, "evolving")
        assert committed is not None
        assert committed.topology is not None
        for name, store in {**self.world.stores, **self.world.aside}.items():
            if store.identity.what[0] in ("join of streams", "subscriptions"):
                continue  # Weir has stores of its own names for them
            assert (name in committed.topology.aside) == (name in self.world.aside), f"store {name}"
            spec = self.specs[name]
            frame = state_as_of(self.app_folder, spec, committed.epoch)
            found = {
                (int(row["task"].rpartition("_")[2]), *_plain(row[column] for column in spec.key)): named(
                    {column: row[column] for column in spec.value}
                )
                for row in frame.to_dicts()
            }
            assert found == {at: named(row) for at, row in store.rows.items()}, f"store {name}"
        for table, output in self.world.outputs.items():
            self._check_output(table, output)

    def _check_output(self, table: str, output: Any) -> None:
        if not (self.app_folder / table).exists():
            assert not output.facts, f"output {table}"
            assert not output.standing, f"output {table}"
            return
        frame = read_rows(self.app_folder / table) if output.way == "facts" else read_table(self.app_folder / table)
        values = [name for name in frame.columns if name in output.columns]
        keys = [name for name in frame.columns if name not in values and not name.startswith("_")]
        rows = [
            ((*_plain(row[name] for name in keys), named({name: row[name] for name in values})))
            for row in frame.to_dicts()
        ]
        if output.way == "facts":
            assert Counter(rows) == output.facts, f"output {table}"
        else:
            assert {row[:-1]: row[-1] for row in rows} == output.standing, f"output {table}"
            assert len(rows) == len(output.standing), f"output {table}"


def _killing_after(count: int) -> Any:
    left = count

    def on_step(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError(name)

    return on_step


def _plain(values: Iterable[Any]) -> list[Any]:
    return [_ms(value) if isinstance(value, datetime) else value for value in values]


def _ms(moment: datetime) -> int:
    return round((moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp() * 1000)
