"""The only folder outside ``--dir``: removed at exit, or at the next start if its owner was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HOLD = (
    "import sys; from weir.infra.spark.session import _sockets_folder; "
    "print(_sockets_folder(), flush=True); sys.stdin.read()"
)


def start(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(folder), "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    return process, process.stdout.readline().strip()


@pytest.fixture
def short_folder():
    """A temporary folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_temporary_folder_with_a_long_path_is_not_used(tmp_path):
    (tmp_path / ("x" * 60)).mkdir()
    process, folder = start(tmp_path / ("x" * 60))
    assert Path(folder).parent == Path("/tmp")
    process.communicate("")
    assert not Path(folder).exists()


@pytest.mark.slow
def test_the_folder_is_removed_with_its_owner_or_at_the_next_start(short_folder):
    (short_folder / "weir-sockets-somebody-elses").mkdir()
    first, first_folder = start(short_folder)
    killed, killed_folder = start(short_folder)
    killed.kill()
    killed.communicate()
    assert len(list(short_folder.iterdir())) == 3
    last, last_folder = start(short_folder)
    assert {str(path) for path in short_folder.iterdir()} == {
        first_folder,
        last_folder,
        str(short_folder / "weir-sockets-somebody-elses"),
    }
    assert killed_folder not in (first_folder, last_folder)
    for process in (first, last):
        process.communicate("")
    assert [path.name for path in short_folder.iterdir()] == ["weir-sockets-somebody-elses"]
