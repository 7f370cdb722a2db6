"""Files of offsets as Kafka Streams' ``OffsetCheckpoint`` writes and reads them."""

import pytest

from weir.state.stores.positions_file import read_offsets, write_offsets


def test_what_is_written_is_read_back(tmp_path):
    file, offsets = tmp_path / ".checkpoint", {("orders", 1): 0, ("a.b", 0): 2**62}
    write_offsets(file, offsets)
    assert file.read_text() == "0\n2\na.b 0 4611686018427387904\norders 1 0\n"
    assert read_offsets(file) == offsets


@pytest.mark.parametrize("offset", [-1, -4])
def test_a_negative_offset_is_not_written_and_the_file_stays(tmp_path, offset):
    file = tmp_path / ".checkpoint"
    write_offsets(file, {("orders", 0): 41})
    with pytest.raises(ValueError, match=rf"checkpoint: the offset {offset} of partition 1 of 'orders' is negative"):
        write_offsets(file, {("orders", 0): 42, ("orders", 1): offset})
    assert [each.name for each in tmp_path.iterdir()] == [".checkpoint"]
    assert read_offsets(file) == {("orders", 0): 41}


def test_no_offsets_leave_no_file(tmp_path):
    file = tmp_path / ".checkpoint"
    write_offsets(file, {})
    write_offsets(file, {("orders", 0): 41})
    write_offsets(file, {})
    assert list(tmp_path.iterdir()) == []
