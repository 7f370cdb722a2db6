"""What is read of the table of dead letters equals a plain model of its rows, and is no more than is shown."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.tasks import dead_letter_files
from weir.pipelines.tasks.dead_letter_files import DeadLetterFiles
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, Letter, dead_letter_frame, letter_id, replay_marks
from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.types import TableSpec

OLDER = TableSpec(
    name=DEAD_LETTERS.name,
    schema=pl.Schema({name: dtype for name, dtype in list(DEAD_LETTERS.schema.items())[:8]}),
)


class Letters:
    """A table, and what is in it: by id, in the order in which they were put there, the stage, the reason and what
    became of it."""

    def __init__(self, folder, seed):
        self.folder, self.chance, self.epoch = folder, random.Random(seed), 0
        self.held: dict[str, tuple[int, int, str, str, str | None]] = {}

    def put(self, *, is_older=False):
        """One epoch: letters of one task, and marks of earlier ones."""
        self.epoch += 1
        records = [
            BadRecord(
                topic="orders",
                partition=0,
                offset=self.epoch * 100 + number,
                timestamp_ms=1_000,
                reason=f"no number: {self.chance.choice('ab')} {number}",
                stage=self.chance.choice(["deserialization", "processing", "production"]),
            )
            for number in range(self.chance.choice([1, 3, 30]))
        ]
        marked = [] if is_older else [id for id, held in self.held.items() if id and held[4] is None][:2]
        frame = dead_letter_frame(records, self.epoch)
        if self.chance.random() < 0.3 and marked:
            marks = replay_marks([self._letter(id) for id in marked], {1: records[0]}, self.epoch)
            frame = pl.concat([frame, marks], how="diagonal_relaxed")
            for place, id in enumerate(marked):
                again = f"failed again, as {letter_id(records[0], self.epoch)}" if place == 1 else "processed"
                self.held[id] = (*self.held[id][:4], again)
        spec = OLDER if is_older else DEAD_LETTERS
        table = AppendTable.create(self.folder, spec, "shop")
        table.append(self.epoch, [write_file(self.folder, spec, frame.select(list(spec.schema)))])
        for record in records:
            self.held[letter_id(record, self.epoch) if not is_older else f"older {record.offset}"] = (
                self.epoch,
                record.offset,
                record.stage,
                record.reason,
                None,
            )

    def merge(self):
        """One file instead of all, as a discard writes it."""
        table = self.folder / DEAD_LETTERS.name
        rows = read_rows(table)
        merged = write_file(self.folder, DEAD_LETTERS, rows, is_merged=True)
        assert replace_files(table, file_actions(DeltaTable(table)), [merged], is_data_changed=True)

    def _letter(self, id):
        return Letter(
            id=id,
            topic="orders",
            partition=0,
            offset=self.held[id][1],
            timestamp_ms=1_000,
            key=None,
            value=None,
            row=None,
        )


@pytest.mark.parametrize("seed", range(6))
def test_counts_and_newest_letters_are_those_of_all_rows(tmp_path, seed):
    letters = Letters(tmp_path, seed)
    assert DeadLetterFiles(tmp_path).newest(["id"], 3).is_empty()
    assert DeadLetterFiles(tmp_path).count() == 0
    for number in range(25):
        letters.put()
        if number == 15:
            letters.merge()
    found, held = DeadLetterFiles(tmp_path), letters.held
    assert found.count() == len(held)
    waiting = {id: each for id, each in held.items() if each[4] is None}
    counted = Counter((stage, reason.rstrip("0123456789") + "#") for _, _, stage, reason, _ in waiting.values())
    by_reason = found.count_by_reason()
    assert {(stage, reason): count for stage, _, reason, count in by_reason.iter_rows()} == counted
    assert by_reason["letters"].is_sorted(descending=True)
    newest = sorted(held, key=lambda id: (-held[id][0], held[id][1]))
    for at_most in (1, 7, 40, None):
        rows = found.newest(["id", "replayed"], at_most).rows()
        assert rows == [(id, held[id][4]) for id in newest[:at_most]]
    some = letters.chance.sample(sorted(held), 9)
    assert set(found.with_ids(some)["id"]) == set(some)
    assert found.outcomes(some) == {id: held[id][4] for id in some if held[id][4] is not None}
    assert set(found.waiting(some, without=some[:3])["id"]) == set(some[3:]) & set(waiting)
    assert found.waiting()["offset"].to_list() == [each[1] for each in waiting.values()]


def test_letters_of_a_version_without_stages_are_listed_after_newer_ones(tmp_path):
    letters = Letters(tmp_path, 1)
    letters.put(is_older=True)
    older = len(letters.held)
    AppendTable.create(tmp_path, DEAD_LETTERS, "shop")
    letters.put()
    found = DeadLetterFiles(tmp_path)
    assert found.count() == len(letters.held)
    newest = found.newest(["offset", "stage"])
    assert [offset for offset, stage in newest.rows() if stage is None] == newest["offset"].to_list()[-older:]


def test_a_list_reads_the_files_of_the_newest_letters_only(tmp_path, monkeypatch):
    letters, read = Letters(tmp_path, 2), []
    for _ in range(30):
        letters.put()
    real = dead_letter_files.scan_files

    def scan(folder, names, schema):
        read.extend(names)
        return real(folder, names, schema)

    monkeypatch.setattr(dead_letter_files, "scan_files", scan)
    found = DeadLetterFiles(tmp_path)
    assert found.newest(["id"], 1).height == 1
    assert len(set(read)) <= 4
    read.clear()
    found.outcomes(["orders-0-100-1"])
    assert len(set(read)) < 15
