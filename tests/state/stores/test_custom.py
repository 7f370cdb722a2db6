"""User-defined stores: whose offsets are kept in a file, and when (KIP-892)."""

from __future__ import annotations

import pytest

from weir.state.errors import PositionsFileError
from weir.state.stores.custom import OffsetKeeper
from weir.state.stores.positions_file import write_offsets


class Notes:
    """A store that remembers in memory what it was told; ``managed`` says whether it manages its offsets."""

    name = "notes"

    def __init__(self, managed: bool) -> None:
        self.managed, self.offsets, self.commits = managed, {}, 0

    def commit(self, offsets) -> None:
        if self.commits == 2:
            raise OSError("no commit")
        self.commits += 1
        if self.managed:
            for topic, of_topic in offsets.items():
                self.offsets.setdefault(topic, {}).update(of_topic)

    def committed_offset(self, topic, partition):
        return self.offsets.get(topic, {}).get(partition)

    def manages_offsets(self):
        return self.managed

    def approximate_num_uncommitted_bytes(self):
        return 0


def test_a_store_that_does_not_manage_offsets_gets_a_file_written_after_its_commit(tmp_path):
    keeper = OffsetKeeper(Notes(managed=False), tmp_path)
    assert keeper.committed_offset("t", 0) is None
    keeper.commit({"t": {0: 5, 1: 7}})
    keeper.commit({"t": {0: 6}})
    assert (tmp_path / "notes.checkpoint").read_text() == "0\n2\nt 0 6\nt 1 7\n"
    with pytest.raises(OSError, match="no commit"):
        keeper.commit({"t": {0: 9}})
    again = OffsetKeeper(Notes(managed=False), tmp_path)
    assert [again.committed_offset("t", partition) for partition in (0, 1, 2)] == [6, 7, None]


def test_a_store_that_manages_its_offsets_gets_no_file(tmp_path):
    keeper = OffsetKeeper(Notes(managed=True), tmp_path)
    keeper.commit({"t": {0: 5}})
    assert keeper.committed_offset("t", 0) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_begins_to_manage_offsets_gets_those_of_the_file_that_it_lacks(tmp_path):
    write_offsets(tmp_path / "notes.checkpoint", {("t", 0): 5, ("t", 1): 7})
    store = Notes(managed=True)
    store.offsets = {"t": {0: 6}}
    keeper = OffsetKeeper(store, tmp_path)
    assert (keeper.committed_offset("t", 0), keeper.committed_offset("t", 1)) == (6, 7)
    assert not (tmp_path / "notes.checkpoint").exists()


def test_an_invalid_file_is_named_with_its_line(tmp_path):
    (tmp_path / "notes.checkpoint").write_text("0\n1\nt 0 five\n")
    with pytest.raises(PositionsFileError, match=r"notes.checkpoint, line 3: 'five'.*restore the file.*remove it"):
        OffsetKeeper(Notes(managed=False), tmp_path)
    (tmp_path / "notes.checkpoint").write_text("0\n1\nt 0 5\n")
    assert OffsetKeeper(Notes(managed=False), tmp_path).committed_offset("t", 0) == 5
    (tmp_path / "notes.checkpoint").unlink()
    assert OffsetKeeper(Notes(managed=False), tmp_path).committed_offset("t", 0) is None


@pytest.mark.parametrize("managed", [False, True])
def test_an_unknown_offset_in_the_file_is_no_offset_and_the_others_stand(tmp_path, managed):
    (tmp_path / "notes.checkpoint").write_text("0\n2\nt 0 -4\nt 1 7\n")
    keeper = OffsetKeeper(Notes(managed), tmp_path)
    assert [keeper.committed_offset("t", partition) for partition in (0, 1)] == [None, 7]
    keeper.commit({"t": {1: 8}})
    if not managed:
        assert (tmp_path / "notes.checkpoint").read_text() == "0\n1\nt 1 8\n"


@pytest.mark.parametrize("managed", [False, True])
def test_a_position_file_beside_the_store_is_taken_over_and_removed(tmp_path, managed):
    """It has the last offset of each partition (KIP-796), so the next one follows; what is known already stands."""
    write_offsets(tmp_path / "notes.checkpoint", {("t", 0): 9})
    (tmp_path / "notes.position").write_text("0\n3\nt 0 5\nt 1 6\nt 2 -4\n")
    keeper = OffsetKeeper(Notes(managed), tmp_path)
    assert [keeper.committed_offset("t", partition) for partition in (0, 1, 2)] == [9, 7, None]
    assert not (tmp_path / "notes.position").exists()
    again = OffsetKeeper(keeper.store if managed else Notes(managed=False), tmp_path)
    assert [again.committed_offset("t", partition) for partition in (0, 1)] == [9, 7]


def test_a_position_file_stays_until_the_store_has_committed_it(tmp_path):
    (tmp_path / "notes.position").write_text("0\n1\nt 0 5\n")
    store = Notes(managed=True)
    store.commits = 2
    with pytest.raises(OSError, match="no commit"):
        OffsetKeeper(store, tmp_path)
    assert (tmp_path / "notes.position").exists()
    store.commits = 0
    assert OffsetKeeper(store, tmp_path).committed_offset("t", 0) == 6
