"""Rows that processes share: on a full disk they stay as they were, and readers keep what they have taken."""

from __future__ import annotations

import pytest

from tests.small_disk import small_disk
from weir.state.engine import shared_rows
from weir.state.engine.shared_rows import About, SharedRows, SharedRowsFullError
from weir.state.errors import DiskFullError


def written(number: int) -> dict[bytes, bytes]:
    return {b"%02d-%04d" % (number, key): b"x" * 1000 for key in range(2_000)}


def write_on(rows: SharedRows, at: int) -> bool:
    return rows.write({"t": written(at)}, About(positions={0: at}) if at else About(), About(positions={0: at + 1}))


def write_until_full(rows: SharedRows) -> None:
    for _ in range(100):
        before = rows.snapshot()
        at = before.about.positions.get(0, 0)
        before.close()
        assert write_on(rows, at)


def test_on_a_full_disk_the_rows_are_as_before_and_go_on_once_there_is_room(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 60) as disk:
        rows = SharedRows(disk.folder / "t", 1, ("t",))
        for reserve in (shared_rows.FREE_DISK_RESERVE_BYTES, 1):  # before a write, and in the middle of one
            monkeypatch.setattr(shared_rows, "FREE_DISK_RESERVE_BYTES", reserve)
            with rows.turn() as is_mine, pytest.raises(DiskFullError, match="global table t"):
                write_until_full(rows)
            assert is_mine
        found = rows.snapshot()
        at = found.about.positions[0]
        assert found.count("t") == at * 2_000 > 20_000
        found.close()
        disk.resize(120)
        with rows.turn():
            assert write_on(rows, at)
        SharedRows._open.clear()


def test_more_rows_than_the_file_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_rows, "MAP_BYTES", 1 << 20)
    rows = SharedRows(tmp_path / "t", 1, ("t",))
    with rows.turn(), pytest.raises(SharedRowsFullError, match="the most that a global table may have"):
        write_on(rows, 0)
    assert not rows.snapshot().about.positions


def test_a_snapshot_stays_what_it_was(tmp_path):
    rows = SharedRows(tmp_path / "t", 1, ("t", "u"))
    none = rows.snapshot()
    with rows.turn() as is_mine:
        assert is_mine
        with SharedRows(tmp_path / "t", 1, ("t", "u")).turn() as is_theirs:
            assert not is_theirs
        assert rows.write({"t": {b"a": b"1", b"b": b"1"}, "u": {b"a": b"2"}}, About(), About(positions={0: 1}))
        one = rows.snapshot()
        assert rows.write({"t": {b"a": None, b"z": None}}, About(positions={0: 1}), About(positions={0: 2}))
        assert not rows.write({"t": {b"b": None}}, About(positions={0: 1}), About(positions={0: 3}))
    two = rows.snapshot()
    assert [each.about.positions for each in (none, one, two)] == [{}, {0: 1}, {0: 2}]
    assert [list(each.scan("t")) for each in (none, one, two)] == [[], [(b"a", b"1"), (b"b", b"1")], [(b"b", b"1")]]
    assert list(one.scan("t", reverse=True)) == [(b"b", b"1"), (b"a", b"1")]
    assert list(two.scan("u")) == [(b"a", b"2")]
    assert one.get_many("t", [b"b", b"c", b"b", b"a"]) == [b"1", None, b"1", b"1"]
    assert one.first("t", b"aa") == (b"b", b"1")
