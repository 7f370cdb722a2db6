"""Kafka Streams' files of offsets: read exactly, refused with the line that is wrong, written back."""

from __future__ import annotations

import re
import shutil

import pytest

from weir.pipelines.migrate.errors import MigrationError, OffsetFileError
from weir.pipelines.migrate.kafka_streams_files import offset_files, read_offsets, read_positions, write_checkpoint

GOOD = "0\n2\norders 0 41\norders 1 7\n"


def checkpoint(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ".checkpoint"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_position_is_one_beyond_the_last_offset_in_the_state(tmp_path):
    file = checkpoint(tmp_path, GOOD)
    assert read_offsets(file) == {("orders", 0): 41, ("orders", 1): 7}
    assert read_positions([file], {"orders"}) == {("orders", 0): 42, ("orders", 1): 8}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("1\n0\n", 1, "version 1.*version 0"),
        ("zero\n0\n", 1, "'zero'.*version"),
        ("", 1, "version"),
        ("0\n", 2, "number of entries"),
        ("0\nmany\n", 2, "'many'.*number of entries"),
        ("0\n-1\n", 2, "'-1'.*number of entries"),
        ("0\n3\norders 0 41\norders 1 7\n", 2, r"\b3\b.*holds 2;"),
        ("0\n1\norders 0 41\norders 1 7\n", 2, r"\b1\b.*holds 2;"),
        ("0\n2\norders 0 41\norders 1\n", 4, "'orders 1'.*`topic partition offset`"),
        ("0\n2\norders 0 41\n\n", 4, "''.*`topic partition offset`"),
        ("0\n1\norders x 41\n", 3, "'x'.*partition"),
        ("0\n1\norders -1 41\n", 3, "'-1'.*partition"),
        ("0\n1\norders 0 4.1\n", 3, r"'4\.1'.*offset"),
        ("0\n3\norders 0 41\norders 1 -4\n", 2, r"\b3\b.*holds 2;"),
        ("0\n2\norders 0 -4\norders 0 42\n", 4, "partition 0 of 'orders'.*second"),
        ("0\n2\norders 0 41\norders 0 42\n", 4, "partition 0 of 'orders'.*second"),
        (b"\xff\xfe\x00garbage", 1, "text"),
    ],
)
def test_a_file_in_another_format_is_refused_by_its_name_and_line(tmp_path, text, line, reason):
    file = checkpoint(tmp_path, text)
    with pytest.raises(OffsetFileError, match=re.escape(f"{file}, line {line}: ") + ".*" + reason):
        read_positions([file], {"orders"})


def test_a_file_that_was_copied_while_it_was_written_is_copied_again(tmp_path):
    file = checkpoint(tmp_path / "copy", GOOD[: len(GOOD) // 2])
    with pytest.raises(OffsetFileError, match="copy the file again from a cleanly stopped application"):
        read_positions([file], {"orders"})
    shutil.copyfile(checkpoint(tmp_path / "stopped", GOOD), file)
    assert read_positions([file], {"orders"}) == {("orders", 0): 42, ("orders", 1): 8}


@pytest.mark.parametrize("unknown", [-4, -1, -77])
def test_an_unknown_offset_is_refused_only_where_it_is_needed(tmp_path, unknown):
    """Kafka Streams writes -4 for a store whose offset it does not know, and skips other negative offsets."""
    first = checkpoint(tmp_path / "0_0", f"0\n3\norders 0 41\norders 1 {unknown}\nsums-changelog 0 {unknown}\n")
    assert read_offsets(first) == {("orders", 0): 41, ("orders", 1): None, ("sums-changelog", 0): None}
    with pytest.raises(
        MigrationError, match=rf"{re.escape(str(first))} has no known offset for partition 1 of 'orders'"
    ):
        read_positions([first], {"orders"})
    second = checkpoint(tmp_path / "0_1", "0\n1\norders 1 7\n")
    for files in ([first, second], [second, first]):
        assert read_positions(files, {"orders"}) == {("orders", 0): 42, ("orders", 1): 8}
    assert read_positions([first], {"payments"}) == {("orders", 0): 42}


def test_all_files_below_a_folder_are_found_and_must_agree(tmp_path):
    checkpoint(tmp_path / "0_0", "0\n1\norders 0 41\n")
    checkpoint(tmp_path / "0_1", "0\n1\norders 1 7\n")
    (tmp_path / "0_1" / "sums.position").write_text("0\n1\norders 1 7\n")
    files = offset_files([tmp_path])
    assert [file.name for file in files] == [".checkpoint", ".checkpoint", "sums.position"]
    assert read_positions(files, {"orders"}) == {("orders", 0): 42, ("orders", 1): 8}
    (tmp_path / "0_1" / "sums.position").write_text("0\n1\norders 1 6\n")
    with pytest.raises(MigrationError, match=r"sums.position has offset 6 .*0_1/.checkpoint has 7"):
        read_positions(files, {"orders"})


def test_a_folder_without_such_files_is_refused(tmp_path):
    with pytest.raises(MigrationError, match=r"folder with \.checkpoint or \.position files; name the files"):
        offset_files([tmp_path])


def test_what_is_written_is_read_back_and_never_overwritten(tmp_path):
    positions = {("orders", 1): 8, ("orders", 0): 42, ("orders", 2): 0}
    assert write_checkpoint(tmp_path / "0_0", positions)
    assert (tmp_path / "0_0" / ".checkpoint").read_text() == GOOD
    assert not write_checkpoint(tmp_path / "0_0", positions), "writing the same again changes nothing"
    with pytest.raises(MigrationError, match="exists with other offsets"):
        write_checkpoint(tmp_path / "0_0", {("orders", 0): 43})
    assert (tmp_path / "0_0" / ".checkpoint").read_text() == GOOD


def test_a_task_that_has_read_nothing_has_no_file(tmp_path):
    """Kafka's ``OffsetCheckpoint`` writes no file for no offsets."""
    assert not write_checkpoint(tmp_path / "0_0", {("orders", 0): 0})
    assert not (tmp_path / "0_0").exists()
    checkpoint(tmp_path / "0_1", "0\n0\n")
    assert not write_checkpoint(tmp_path / "0_1", {("orders", 0): 0})
    checkpoint(tmp_path / "0_2", "0\n1\norders 0 -4\n")
    with pytest.raises(MigrationError, match="exists with other offsets"):
        write_checkpoint(tmp_path / "0_2", {("orders", 0): 0})
