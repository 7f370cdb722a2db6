"""What is removed of local state that nobody needs: compared with a plain model of looks, and killed at every step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.dying import KilledError
from tests.state.quarantine_folders import open_elsewhere
from weir.state.engine import cleanup
from weir.state.engine.cleanup import UNNEEDED, clean_up
from weir.state.engine.environment import IDENTITY
from weir.state.engine.instances import instances, note_generation
from weir.state.engine.shared_rows import FOLDER, About, SharedRows, newest_rows
from weir.state.engine.standby import standby_of, standbys, unneeded_mark
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId

DELAY_S = 600.0
NAMES = "0_0/a", "0_0/b", "0_1/a"


def make(state: Path, name: str, generation: int = 1) -> Path:
    folder = state / name
    folder.mkdir(parents=True)
    (folder / IDENTITY).write_text("{}")
    (folder / "data.mdb").write_bytes(b"rows")
    note_generation(folder, generation)
    return folder


def look(state: Path, needed: set[str], now_s: float, generation: int = 1) -> set[str]:
    """What a look removes; what it marks is as old as the look."""
    marked = {folder for folder in instances(state) if (folder / UNNEEDED).exists()}
    wanted = {state / name for name in needed}
    removed = clean_up(state, lambda: wanted, generation=generation, delay_s=DELAY_S, now_s=now_s)
    for folder in set(instances(state)) - marked:
        if (folder / UNNEEDED).exists():
            os.utime(folder / UNNEEDED, (now_s, now_s))
    return {str(folder.relative_to(state)) for folder in removed}


@given(st.lists(st.tuples(st.floats(0.0, 500.0), st.sets(st.sampled_from(NAMES)))))
def test_an_instance_goes_once_all_looks_for_as_long_as_the_delay_have_found_it_unneeded(looks):
    now_s, since = 1e9, dict[str, float]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        state, there = Path(folder), set(NAMES)
        for name in NAMES:
            make(state, name)
        for passed_s, needed in looks:
            now_s += passed_s
            due = {name for name in there - needed if now_s - since.get(name, now_s) >= DELAY_S and name in since}
            assert look(state, needed, now_s) == due
            there -= due
            since = {name: since.get(name, now_s) for name in there - needed}
            assert {str(each.relative_to(state)) for each in instances(state)} == there
        assert list(state.glob("*/quarantine/*")) == []


def test_what_a_newer_driver_uses_stays_also_if_it_comes_at_the_last_moment(tmp_path, monkeypatch):
    make(tmp_path, "0_0/a", generation=3)
    late = make(tmp_path, "0_1/a")
    look(tmp_path, set(), 0.0, generation=2)
    assert not (tmp_path / "0_0/a" / UNNEEDED).exists()
    rename = Path.rename

    def moved(path: Path, target: Path) -> Path:
        if path == late and "quarantine" in str(target):
            note_generation(late, 3)  # which opens it just before it is moved
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", moved)
    assert look(tmp_path, set(), 2 * DELAY_S, generation=2) == set()
    assert (late / "data.mdb").read_bytes() == b"rows"
    assert look(tmp_path, set(), 2 * DELAY_S, generation=3) == {"0_1/a"}


def test_what_a_process_has_open_stays(tmp_path):
    TaskStore.create(tmp_path / "0_0" / "a", "0_0", ["a"]).close()
    look(tmp_path, set(), 0.0)
    with open_elsewhere(tmp_path / "0_0" / "a"):
        assert look(tmp_path, set(), 2 * DELAY_S) == set()
    assert look(tmp_path, set(), 2 * DELAY_S) == set(), "it counts from then on"
    assert look(tmp_path, set(), 4 * DELAY_S) == {"0_0/a"}


def test_a_standby_goes_by_the_same_rules_unless_it_has_been_used_since(tmp_path):
    for task in ("0_0", "0_1", "0_2"):
        with standby_of(tmp_path / task) as standby:
            TaskStore.create(standby.new, task, ["a"]).close()
            standby.built()
    with standby_of(tmp_path / "0_3") as standby:
        TaskStore.create(standby.new, "0_3", ["a"]).close()  # and dies
    note_generation(tmp_path / "0_2/.standby", 3)

    def look_at(now_s: float, needed: str) -> set[str]:
        wanted = {tmp_path / needed}
        removed = clean_up(tmp_path, lambda: wanted, generation=2, delay_s=DELAY_S, now_s=now_s)
        return {str(folder.relative_to(tmp_path)) for folder in removed}

    def mark(now_s: float) -> None:
        for folder in standbys(tmp_path):
            if unneeded_mark(folder).exists():
                os.utime(unneeded_mark(folder), (now_s, now_s))

    assert look_at(0.0, "0_0/.standby") == set()
    mark(0.0)
    assert look_at(DELAY_S - 1, "0_0/.standby") == set()
    with standby_of(tmp_path / "0_1") as standby:
        assert look_at(DELAY_S, "0_0/.standby") == {"0_3/.standby"}, "the other one is being brought to a commit"
        standby.opened("0_1", ["a"], 1, StateId(1, 1))
    assert {str(folder.relative_to(tmp_path)) for folder in standbys(tmp_path)} == {"0_0/.standby", "0_2/.standby"}
    assert list(tmp_path.glob("*/*.unneeded")) == []


def test_a_standby_is_removed_at_once_whenever_that_is_cut_short(tmp_path, monkeypatch):
    """Half of one is never taken for a standby, not even if the file goes first that says that rows are missing."""

    def dying(folder: Path, **options: object) -> None:
        if folder.exists():
            (folder / "follows").unlink()
            raise KilledError

    with standby_of(tmp_path / "0_0") as standby:
        TaskStore.create(standby.new, "0_0", ["a"]).close()
        standby.built()
    monkeypatch.setattr(shutil, "rmtree", dying)
    with pytest.raises(KilledError), standby_of(tmp_path / "0_0") as standby, standby.following():
        raise OSError
    monkeypatch.undo()
    assert not (tmp_path / "0_0/.standby").exists()
    with standby_of(tmp_path / "0_0") as standby:
        assert standby.opened("0_0", ["a"], 0, StateId(1, 1)) is None
    assert list(standbys(tmp_path)) == []


def make_table(state: Path, name: str, generation: int = 1) -> Path:
    """A global table whose rows are whole."""
    folder = state / FOLDER / name
    rows = SharedRows(folder, generation, ("t",))
    with rows.turn():
        assert rows.write({"t": {b"key": b"value"}}, About(), About(positions={0: 1}, is_whole=True))
    SharedRows._open.pop(rows._folder.resolve())[0].close()  # as the process that wrote them has ended
    return folder


def look_at_tables(state: Path, needed: str, now_s: float) -> set[str]:
    """What a look removes of the tables; what it marks is as old as the look."""
    wanted = {state / FOLDER / needed}
    marked = set(state.glob(f"{FOLDER}/*/{UNNEEDED}"))
    removed = clean_up(state, lambda: wanted, generation=1, delay_s=DELAY_S, now_s=now_s)
    for mark in set(state.glob(f"{FOLDER}/*/{UNNEEDED}")) - marked:
        os.utime(mark, (now_s, now_s))
    return {folder.name for folder in removed}


def rows_of(folder: Path) -> list[tuple[bytes, bytes]] | None:
    with newest_rows(folder, ("t",)) as rows:
        return None if rows is None else list(rows.scan("t"))


def test_rows_of_a_global_table_go_once_no_program_has_had_it_for_as_long_as_the_delay(tmp_path):
    kept, gone = make_table(tmp_path, "kept"), make_table(tmp_path, "gone")
    newer = make_table(tmp_path, "newer", generation=2)
    assert look_at_tables(tmp_path, "kept", 0.0) == set()
    assert look_at_tables(tmp_path, "kept", DELAY_S - 1) == set()
    assert rows_of(gone) == [(b"key", b"value")], "the mark is none of its rows"
    assert look_at_tables(tmp_path, "gone", DELAY_S) == set(), "an older program has come back"
    assert look_at_tables(tmp_path, "kept", DELAY_S) == set()
    assert look_at_tables(tmp_path, "kept", 2 * DELAY_S) == {"gone"}
    assert not gone.exists()
    assert rows_of(kept) == rows_of(newer) == [(b"key", b"value")]


OPENING = """
import sys
from pathlib import Path
from weir.state.engine.shared_rows import SharedRows, newest_rows
folder = Path(sys.argv[1])
worker = SharedRows(folder, 1, ("t",))
with newest_rows(folder, ("t",)) if sys.argv[2] == "query" else worker.turn() as rows:
    assert rows
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("who", ["worker", "query"])
def test_rows_of_a_global_table_that_a_process_has_open_stay(tmp_path, who):
    folder = make_table(tmp_path, "gone")
    look_at_tables(tmp_path, "kept", 0.0)
    command = [sys.executable, "-c", OPENING, str(folder), who]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        assert look_at_tables(tmp_path, "kept", 2 * DELAY_S) == set()
        process.stdin.close()
        assert process.wait() == 0
    assert rows_of(folder) == [(b"key", b"value")]
    assert look_at_tables(tmp_path, "kept", 2 * DELAY_S) == set(), "it counts from then on"
    assert look_at_tables(tmp_path, "kept", 3 * DELAY_S) == {"gone"}


def test_what_is_needed_is_not_opened_which_would_release_the_locks_of_this_process(tmp_path, monkeypatch):
    make(tmp_path, "0_0/a")
    folder = make_table(tmp_path, "kept")

    def refused(folder: Path) -> bool:
        raise AssertionError(folder)

    monkeypatch.setattr(cleanup, "is_open", refused)
    monkeypatch.setattr(cleanup, "is_in_use", refused)
    wanted = {tmp_path / "0_0/a", folder}
    assert clean_up(tmp_path, lambda: wanted, generation=1, delay_s=DELAY_S, now_s=0.0) == []


def test_what_a_kill_leaves_of_a_global_table_goes_later(tmp_path, monkeypatch):
    folder = make_table(tmp_path, "gone")
    look_at_tables(tmp_path, "kept", 0.0)

    def dying(path: Path) -> None:
        (path / UNNEEDED).unlink()
        raise KilledError

    monkeypatch.setattr(shutil, "rmtree", dying)
    with pytest.raises(KilledError):
        look_at_tables(tmp_path, "kept", DELAY_S)
    monkeypatch.undo()
    assert look_at_tables(tmp_path, "kept", DELAY_S) == set()
    assert look_at_tables(tmp_path, "kept", 2 * DELAY_S) == {"gone"}
    assert not folder.exists()


@pytest.mark.parametrize("step", ["is_open", "quarantine", "discard", "clear_doubt"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_it_has_touched_nothing_that_is_needed_and_the_next_look_goes_on(
    tmp_path, monkeypatch, step, when
):
    needed, unneeded = make(tmp_path, "0_0/a"), make(tmp_path, "0_0/b")
    look(tmp_path, {"0_0/a"}, 0.0)
    right = getattr(cleanup, step)

    def dying(*arguments: object) -> object:
        if when == "after":
            right(*arguments)
        raise KilledError

    monkeypatch.setattr(cleanup, step, dying)
    with pytest.raises(KilledError):
        look(tmp_path, {"0_0/a"}, 2 * DELAY_S)
    monkeypatch.undo()
    look(tmp_path, {"0_0/a"}, 2 * DELAY_S)
    assert (needed / "data.mdb").read_bytes() == b"rows"
    assert not unneeded.exists()
    left = list(tmp_path.glob("0_0/quarantine/*/reason.txt"))
    assert len(left) == (step == "quarantine" and when == "after") + (step == "discard" and when == "before")
    shutil.rmtree(tmp_path)
