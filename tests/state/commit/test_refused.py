"""Rows that an outside system refuses are put aside once, in order, and can be taken up again as from an outbox."""

import polars as pl

from weir.state.commit import refused as module
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Mark, Outbox, outbox_name, refused_number
from weir.state.commit.refused import Refused
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.types import TableSpec

APP, SINK = "app", "orders"
NARROW = pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()})
WIDER = pl.Schema({"n": pl.Int64(), "note": pl.String(), "_epoch": pl.Int64()})


def commit(folder, epoch, values, schema=NARROW):
    spec = TableSpec(name=outbox_name(SINK), schema=schema)
    rows = pl.DataFrame({"n": values, "note": "x", "_epoch": epoch}).select(list(schema))
    AppendTable.create(folder, spec, APP).append(epoch, [write_file(folder, spec, rows)])


def pieces(outbox, after, at_most):
    return [(rows["n"].to_list(), mark) for rows, mark in outbox.rows(after, at_most=at_most, size_bytes=1 << 20)]


def refuse(folder, after, at_most):
    """Put the next rows aside, as a publisher does, and return the mark that they reach."""
    rows, reached = next(Outbox(folder, SINK, APP).rows(after, at_most=at_most, size_bytes=1 << 20))
    Refused(folder, SINK, APP).add(rows, reached, "too large")
    return reached


def test_nothing_is_aside_before_a_row_was_refused(tmp_path):
    commit(tmp_path, 1, [1])
    assert Refused(tmp_path, SINK, APP).mark == Mark()
    assert Refused(tmp_path, SINK, APP).count() == 0


def test_refused_rows_are_aside_with_their_reason_and_come_in_the_order_of_their_refusal(tmp_path):
    commit(tmp_path, 1, [1, 2, 3])
    commit(tmp_path, 2, [4])
    first = refuse(tmp_path, Mark(), 2)
    second = refuse(tmp_path, Mark(1, 3), 1)
    assert (first, second) == (Mark(1, 2), Mark(2, 1))
    assert Refused(tmp_path, SINK, APP).mark == second
    assert Refused(tmp_path, SINK, APP).count() == 3
    aside = read_rows(tmp_path / "_refused" / SINK)
    assert set(aside["_reason"]) == {"too large"}
    assert [rows for rows, _ in pieces(Outbox(tmp_path, SINK, APP, is_of_refused=True), Mark(), 2)] == [[1, 2], [4]]


def test_rows_that_a_killed_publisher_put_aside_are_not_put_there_again_even_once_they_were_sent(tmp_path):
    commit(tmp_path, 1, [1, 2])
    reached = refuse(tmp_path, Mark(), 1)
    refuse(tmp_path, Mark(), 1)
    assert Refused(tmp_path, SINK, APP).count() == 1
    again = Outbox(tmp_path, SINK, APP, is_of_refused=True)
    ((_, mark),) = pieces(again, Mark(), 10)
    again.remove(mark)
    assert Refused(tmp_path, SINK, APP).count() == 0
    refuse(tmp_path, Mark(), 1)
    assert Refused(tmp_path, SINK, APP).count() == 0
    assert Refused(tmp_path, SINK, APP).mark == reached


def test_the_first_of_what_is_aside_is_named_by_its_place(tmp_path):
    commit(tmp_path, 1, [1, 2, 3])
    commit(tmp_path, 2, [4])
    refused = Refused(tmp_path, SINK, APP)
    assert refused.first(2) == []
    refuse(tmp_path, Mark(1, 1), 2)
    refuse(tmp_path, Mark(1, 3), 1)
    first, second = refused.first(2)
    assert (first.through, first.rows, first.first.rows(), first.reason) == (
        Mark(1, 3),
        2,
        [(2, refused_number(Mark(1, 3)))],
        "too large",
    )
    assert (second.through, second.rows, second.first["n"].to_list()) == (Mark(2, 1), 1, [4])
    assert [each.through for each in refused.first(1)] == [first.through]
    aside = Outbox(tmp_path, SINK, APP, is_of_refused=True)
    marks = [mark for _, mark in aside.rows(Mark(), at_most=1, size_bytes=1 << 20)]
    assert [aside.committed_as(mark) for mark in marks] == [Mark(1, 2), Mark(1, 3), Mark(2, 1)]
    aside.remove(marks[1])
    assert [each.through for each in refused.first(2)] == [Mark(2, 1)]


def test_rows_that_are_sent_again_while_the_first_are_read_are_no_longer_among_them(tmp_path, monkeypatch):
    commit(tmp_path, 1, [1, 2, 3])
    refuse(tmp_path, Mark(), 1)
    refuse(tmp_path, Mark(1, 1), 1)
    refused, aside = Refused(tmp_path, SINK, APP), Outbox(tmp_path, SINK, APP, is_of_refused=True)
    (_, first), _ = pieces(aside, Mark(), 1)
    real = module.scan_files

    def scan(*arguments):
        monkeypatch.undo()
        aside.remove(first)
        return real(*arguments)

    monkeypatch.setattr(module, "scan_files", scan)
    assert [each.through for each in refused.first(5)] == [Mark(1, 2)]


def test_an_outbox_that_has_got_a_column_refuses_rows_with_it(tmp_path):
    commit(tmp_path, 1, [1])
    refuse(tmp_path, Mark(), 1)
    commit(tmp_path, 2, [2], WIDER)
    refuse(tmp_path, Mark(1, 1), 1)
    assert read_rows(tmp_path / "_refused" / SINK).sort("n").select("n", "note").rows() == [(1, None), (2, "x")]
