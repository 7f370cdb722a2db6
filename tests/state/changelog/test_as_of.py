"""The state as of each commit from the changelog, and the error once compaction has removed it."""

from __future__ import annotations

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.engine.memory import MemoryStore
from weir.state.errors import HistoryGoneError
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.specs import key_value_spec
from weir.state.types import StateId

SPEC = key_value_spec("sums", pl.Schema({"user": pl.String()}), pl.Schema({"n": pl.Int64()}))


def test_each_commit_has_its_state_until_compaction_merges_it_with_newer_ones(tmp_path):
    app = tmp_path / "app"
    table = changelog_spec(SPEC)
    driver = Committer(tmp_path, "app", [table], fingerprint="f")
    driver.claim()
    assert state_as_of(app, SPEC, 9).is_empty()
    stores = {task: MemoryStore(task, ["sums"]) for task in ("s_0", "s_1")}
    wanted: dict[int, list] = {}
    held: dict[tuple[str, str], int] = {}
    for epoch in range(1, 6):
        files = []
        for place, (task, memory) in enumerate(stores.items()):
            with memory.session() as session:
                store = KeyValueStore(SPEC, session)
                store.put(f"u{place}-{epoch % 2}", epoch, epoch)
                held[task, f"u{place}-{epoch % 2}"] = epoch
                if epoch == 4:
                    store.delete(f"u{place}-1")
                    del held[task, f"u{place}-1"]
                rows = changelog_frame(SPEC, session).with_columns(_epoch=pl.lit(epoch, pl.Int64))
                files.append(write_file(app, table, rows, {"task": task, "segment": "0"}))
                memory.apply(
                    session,
                    state=StateId(1, epoch),
                    expected=memory.current,
                    generation=1,
                    plan_hash="",
                    make_receipt=lambda _: b"",
                )
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
        )
        wanted[epoch] = sorted((task, user, n) for (task, user), n in held.items())
    for epoch, rows in wanted.items():
        assert state_as_of(app, SPEC, epoch).select("task", "user", "n").rows() == rows
    driver.close()
    DeltaTable(app / table.name).optimize.compact()
    assert state_as_of(app, SPEC, 5).select("task", "user", "n").rows() == wanted[5]
    with pytest.raises(HistoryGoneError, match="ask for epoch 5"):
        state_as_of(app, SPEC, 3)
