"""A reader in another process sees only committed states, however fast it reads, and never holds up the writer."""

from __future__ import annotations

import random
import subprocess
import sys

from weir.state.engine.contract import Settlement
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId

EPOCHS = 200


def test_a_reader_in_another_process_never_sees_an_uncommitted_write_in_200_epochs(tmp_path):
    """Every epoch writes its number to some rows and deletes others; most epochs are later rolled back or committed."""
    rng = random.Random(11)
    store = TaskStore.create(tmp_path / "i", "0_0", ["s"])
    reader = subprocess.Popen(
        [sys.executable, "-m", "tests.state.engine.read_committed", str(tmp_path / "i")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin
    assert reader.stdout
    assert reader.stdout.readline() == "ready\n"
    rows: dict[bytes, bytes] = {}
    committed_rows: dict[bytes, bytes] = {}
    states, state, committed = {describe({})}, None, None
    for number in range(1, EPOCHS + 1):
        with store.session() as session:
            keys = [b"%d" % key for key in rng.sample(range(300), 100)]
            session.put_many("s", keys, [b"%d" % number] * len(keys))
            gone = [b"%d" % key for key in rng.sample(range(300), 30)]
            session.delete_many("s", gone)
            rows.update(dict.fromkeys(keys, b"%d" % number))
            for key in gone:
                rows.pop(key, None)
            before, state = state, StateId(1, number)
            store.apply(
                session, state=state, expected=before, generation=1, plan_hash=str(number), make_receipt=lambda _: b""
            )
        fate = rng.random()
        if fate < 0.3:
            states.add(describe(rows))
            assert store.settle(generation=1, expected=state, committed=state) is Settlement.READY
            committed, committed_rows = state, dict(rows)
        elif fate < 0.5:
            assert store.settle(generation=1, expected=committed, committed=committed) is Settlement.ROLLED_BACK
            state, rows = committed, dict(committed_rows)
    found, _ = reader.communicate("", timeout=30)
    *seen, last = found.splitlines()
    store.close()
    assert reader.returncode == 0
    assert set(seen) <= states
    assert len(seen) > 2
    assert int(last.split()[1]) > 10


def describe(rows: dict[bytes, bytes]) -> str:
    """A state as the reader prints it."""
    return f"{len(rows)} {len(rows)} {','.join(sorted({value.decode() for value in rows.values()}))}"
