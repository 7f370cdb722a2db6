"""A run of ``sales`` on disk whose stores are verified, and damaged."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from tests.pipelines.spark.inline import Place
from weir.infra.settings import Settings
from weir.pipelines.operations.verify import verify_application
from weir.state.changelog.verify import StateDifferenceError


class Shop(Place):
    """Two tasks of sales, five shops each."""

    def verify(self) -> list[int]:
        """Rows by task, all matching."""
        return [agreement.rows for agreement in verify_application(Settings(dir=self.folder), self.application)]

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "sales"

    def differs(self) -> StateDifferenceError:
        with pytest.raises(StateDifferenceError) as caught:
            self.verify()
        assert caught.value.task == self.name_of("0_1")
        return caught.value

    def change(self, store: str, key: bytes, value: bytes | None) -> None:
        """Change a row as a faulty disk would; the row counts are not checked."""
        instance = self.state_of("0_1") / "first"
        with lmdb.open(str(instance), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
            database = raw.open_db(store.encode(), txn=txn)
            assert txn.delete(key, db=database) if value is None else txn.put(key, value, db=database)
