"""What commands and runs leave on disk is for their user alone, or for those whom ``WEIR_UMASK`` lets in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LIMIT_S = 120
OPEN = 0o022
"""What most systems give a process: everybody may read what it writes."""


def weir(folder: Path, *command: str, lines: str = "", **variables: str) -> None:
    """A command in a process of its own, as from a terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    done = subprocess.run(
        [sys.executable, "-c", "from weir.pipelines.cli import main; main()", *command],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.getcwd(), **variables},
        umask=OPEN,
        input=lines,
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def modes(folder: Path) -> Iterator[tuple[str, int]]:
    """The permissions of a folder and of all that is in it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and not path.is_socket():
            yield path.relative_to(folder).as_posix(), stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [None, pytest.param("027", marks=pytest.mark.long)])
def test_what_a_run_writes_is_for_its_user_alone_unless_the_variable_lets_others_in(tmp_path, umask):
    variables = {} if umask is None else {"WEIR_UMASK": umask}
    weir(tmp_path, "kafka", "create", "events", "--partitions", "4", **variables)
    weir(tmp_path, "kafka", "produce", "events", lines='ann\t{"amount": 5, "kind": "tea"}\n', **variables)
    weir(tmp_path, "run", "tests.faults.applications:app", "--until-caught-up", **variables)
    found, closed = dict(modes(tmp_path / ".weir")), int(umask or "077", 8)
    names = {Path(path).name for path in found}
    assert {"data.mdb", "control.sqlite", "broker.log", "spark.log", "faulty.json"} <= names
    folders = {path for path in found if (tmp_path / ".weir" / path).is_dir()}
    most = {path: (0o777 if path in folders else 0o666) & ~closed for path in found}
    assert {path: oct(mode) for path, mode in found.items() if mode & ~most[path]} == {}
    # Those who are let in find a way to the tables.
    way = [".", "warehouse", "warehouse/faulty", "warehouse/faulty/user_sums"]
    assert [oct(found[path]) for path in way] == [oct(0o777 & ~closed)] * len(way)
