"""An outbox gives its rows in one order, from any mark, whatever the pieces; what is published goes."""

import os
import time

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir.state.changelog.compaction import Compaction
from weir.state.commit import outbox as outbox_module
from weir.state.commit.files import read_files, write_file
from weir.state.commit.outbox import Mark, Outbox, Waiting, outbox_name
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

SPEC = TableSpec(name=outbox_name("orders"), schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))


class Writer:
    """Commits files as tasks leave them, and knows in which order their rows are read."""

    def __init__(self, folder):
        self.folder, self.table, self.epoch, self.made = folder, AppendTable.create(folder, SPEC, "app"), 0, 0
        self.rows = []
        """``(epoch, number in the epoch, n)``"""

    def commit(self, epochs):
        """``epochs`` has, for each, the number of rows of each of its files."""
        added, in_order = [], []
        for heights in epochs:
            self.epoch += 1
            files = []
            for height in heights:
                values = list(range(self.made, self.made + height))
                self.made += height
                files.append((write_file(self.folder, SPEC, pl.DataFrame({"n": values, "_epoch": self.epoch})), values))
            files.sort(key=lambda file: file[0].path)
            added += [entry for entry, _ in files]
            values = [value for _, several in files for value in several]
            in_order += [(self.epoch, number, value) for number, value in enumerate(values)]
        self.table.append(self.epoch, added)
        self.rows += in_order


def after(rows, mark):
    return [value for epoch, number, value in rows if (epoch, number) >= mark]


heights = st.lists(st.integers(1, 7), min_size=1, max_size=3)
commits = st.lists(st.lists(heights, min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=examples(40))
@given(commits=commits, at_most=st.integers(1, 12), size_bytes=st.integers(1, 200), data=st.data())
def test_rows_come_in_order_from_any_mark_in_pieces_and_go_once_published(
    tmp_path_factory, commits, at_most, size_bytes, data
):
    folder = tmp_path_factory.mktemp("app")
    writer = Writer(folder)
    outbox = Outbox(folder, "orders", "app")
    mark, published = Mark(), []
    for epochs in commits:
        writer.commit(epochs)
        assert outbox.refresh()
        assert not outbox.refresh()
        left = after(writer.rows, mark)
        assert outbox.waiting(mark).rows == len(left)
        pieces = list(outbox.rows(mark, at_most=at_most, size_bytes=size_bytes))
        assert [value for rows, _ in pieces for value in rows["n"]] == left
        assert all(1 <= rows.height <= at_most for rows, _ in pieces)
        assert all(rows.height == 1 or rows.estimated_size() <= size_bytes for rows, _ in pieces)
        for rows, reached in pieces[: data.draw(st.integers(0, len(pieces)))]:
            published += rows["n"].to_list()
            mark = reached
        assert published + after(writer.rows, mark) == [value for *_, value in writer.rows]
        if data.draw(st.booleans()):
            outbox.remove(mark)
            outbox.refresh()
            assert outbox.floor <= mark.epoch
            gone = [value for epoch, _, value in writer.rows if epoch <= outbox.floor]
            assert published[: len(gone)] == gone
            assert len(list(outbox.folder.list())) == outbox._files().height
    assert [value for rows, _ in outbox.rows(mark, at_most=99, size_bytes=9999) for value in rows["n"]] == after(
        writer.rows, mark
    )


SIZED = TableSpec(name=SPEC.name, schema=pl.Schema({"n": pl.Int64(), "_bytes": pl.Int64(), "_epoch": pl.Int64()}))


def cut(rows, at_most, size_bytes):
    """``(epoch, number, bytes)`` in order, cut greedily and at each epoch's end."""
    pieces = []
    for row in rows:
        piece = pieces[-1] if pieces else []
        fits = len(piece) < at_most and sum(size for *_, size in piece) + row[2] <= size_bytes
        if piece and piece[0][0] == row[0] and fits:
            piece.append(row)
        else:
            pieces.append([row])
    return pieces


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(
        st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    at_most=st.integers(1, 6),
    size_bytes=st.integers(1, 60),
)
def test_pieces_of_one_epoch_are_the_same_from_whichever_of_their_marks(tmp_path_factory, sizes, at_most, size_bytes):
    """Cut from the epoch's first row, by the bytes that each row says it has."""
    folder = tmp_path_factory.mktemp("app")
    table, in_order = AppendTable.create(folder, SIZED, "app"), []
    for epoch, files in enumerate(sizes, start=1):
        entries = []
        for each in files:
            frame = pl.DataFrame({"n": 0, "_bytes": each, "_epoch": epoch})
            entries.append((write_file(folder, SIZED, frame), each))
        entries.sort(key=lambda entry: entry[0].path)
        table.append(epoch, [entry for entry, _ in entries])
        flat = [size for _, each in entries for size in each]
        in_order += [(epoch, number, size) for number, size in enumerate(flat)]
    outbox = Outbox(folder, "orders", "app")
    expected = cut(in_order, at_most, size_bytes)
    marks = [Mark(piece[-1][0], piece[-1][1] + 1) for piece in expected]
    for done, after in enumerate([Mark(), *marks]):
        found = list(outbox.rows(after, at_most=at_most, size_bytes=size_bytes, one_epoch=True))
        assert [mark for _, mark in found] == marks[done:]
        assert [rows["_bytes"].to_list() for rows, _ in found] == [
            [size for *_, size in each] for each in expected[done:]
        ]


def test_files_of_an_epoch_that_fit_into_a_piece_are_read_in_one_pass(tmp_path, monkeypatch):
    writer, passes, sizes = Writer(tmp_path), [], {}
    writer.commit([[2] * 7, [9], [3, 3]])
    outbox = Outbox(tmp_path, "orders", "app")

    def counted(folder, names, schema):
        frame = read_files(folder, names, schema)
        passes.append(len(names))
        sizes.update({name: folder.find(name).size_bytes for name in names})
        return frame

    monkeypatch.setattr(outbox_module, "read_files", counted)
    rows = [rows["n"].to_list() for rows, _ in outbox.rows(Mark(), at_most=6, size_bytes=1 << 20)]
    assert passes == [3, 3, 1, 1, 2]
    in_order = [value for *_, value in writer.rows]
    assert rows == [in_order[first : first + 6] for first in range(0, len(in_order), 6)]
    passes.clear()
    list(outbox.rows(Mark(), at_most=99, size_bytes=max(sizes.values())))
    assert passes == [1] * 10


def test_what_is_added_is_found_after_a_mark_that_had_nothing_behind_it(tmp_path):
    writer = Writer(tmp_path)
    writer.commit([[2, 1]])
    outbox = Outbox(tmp_path, "orders", "app")

    def found(mark):
        pieces = list(outbox.rows(mark, at_most=2, size_bytes=1 << 20))
        return [value for rows, _ in pieces for value in rows["n"]]

    end, before = Mark(1, 3), Mark(1, 1)
    assert found(end) == found(end) == []
    assert found(before) == after(writer.rows, before)
    writer.commit([[1], [2]])
    assert (found(end), outbox.refresh()) == ([], True)
    assert found(end) == after(writer.rows, end)
    assert found(before) == after(writer.rows, before)
    assert outbox.waiting(end).rows == 3
    outbox.remove(Mark(2, 1))
    outbox.refresh()
    assert found(end) == after(writer.rows, Mark(3)) == [4, 5]


def test_what_waits_is_counted_with_its_age(tmp_path):
    before = time.time()
    writer = Writer(tmp_path)
    outbox = Outbox(tmp_path, "orders", "app")
    assert outbox.waiting(Mark()) == Waiting(rows=0, size_bytes=0, since_s=None)
    writer.commit([[3, 2]])
    outbox.refresh()
    waiting = outbox.waiting(Mark(1, 4))
    assert (waiting.rows, waiting.size_bytes) == (
        1,
        sum(file.size_bytes for file in outbox.folder.list()),
    )
    assert before - 0.001 <= waiting.since_s <= time.time()
    assert outbox.waiting(Mark(1, 5)) == Waiting(rows=0, size_bytes=0, since_s=None)


def test_published_rows_go_beside_a_writer_that_has_not_heard_of_it(tmp_path):
    writer = Writer(tmp_path)
    writer.commit([[2]])
    outbox = Outbox(tmp_path, "orders", "app")
    outbox.remove(Mark(1, 2))
    writer.commit([[3]])
    outbox.refresh()
    assert (outbox.floor, outbox.waiting(Mark(1, 2)).rows) == (1, 3)
    outbox.remove(Mark(1, 2))
    assert Outbox(tmp_path, "orders", "app").waiting(Mark()).rows == 3


def test_compaction_deletes_what_dead_tasks_left_and_never_merges_rows_that_wait(tmp_path):
    """Their order is that of their files."""
    committer = Committer(tmp_path, "app", [SPEC], fingerprint="f")
    written = committer.claim().generation
    orphan = write_file(tmp_path / "app", SPEC, pl.DataFrame({"n": [9], "_epoch": 1}))
    files = [write_file(tmp_path / "app", SPEC, pl.DataFrame({"n": [each], "_epoch": 1})) for each in (1, 2)]
    generation = committer.claim().generation
    assert generation > written
    committer.commit(
        CommitRecord(kind="commit", generation=generation, epoch=1, at_ms=0, fingerprint="f", files=tuple(files))
    )
    committer.close()
    for each in (orphan, *files):
        path = tmp_path / "app" / SPEC.name / each.path
        os.utime(path, (1, 1))
    compaction = Compaction(tmp_path, "app", is_whole=True)
    assert SPEC.name in compaction.tables()
    list(compaction.run(compaction.tables()))
    left = {path.name for path in (tmp_path / "app" / SPEC.name).glob("*.parquet")}
    assert left == {entry.path for entry in files}
    rows = list(Outbox(tmp_path / "app", "orders", "app").rows(Mark(), at_most=10, size_bytes=1 << 20))
    assert sorted(rows[0][0]["n"]) == [1, 2]
