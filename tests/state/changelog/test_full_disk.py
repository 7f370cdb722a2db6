"""A compaction on a disk that is really full ends with a sentence; tables keep their rows, and the next one works."""

from __future__ import annotations

import pytest

from tests.small_disk import small_disk
from tests.state.changelog.twins import Twins
from weir.state.errors import DiskFullError
from weir.state.full_disk import telling


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begun", "rows written", "horizon raised", "files replaced"])
def test_a_compaction_for_which_there_is_no_room_leaves_the_rows_and_is_repeated(tmp_path, step):
    with small_disk(tmp_path / "disk", 40) as disk:
        twins = Twins(disk.folder)
        twins.commit(12)

        def on_step(name: str) -> None:
            if name == step:
                disk.fill()

        on_step("begun")
        with pytest.raises(DiskFullError, match=r"bytes free.*free some space there"), telling("it", [twins.app]):
            twins.compact(on_step=on_step, tombstone_retention_ms=0)
        disk.clear()
        twins.compact(tombstone_retention_ms=0)
        twins.check()
        twins.close()
