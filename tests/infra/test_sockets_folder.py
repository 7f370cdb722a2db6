"""The one folder outside ``--dir``: gone at exit, and at the next start when its owner was killed."""

from __future__ import annotations

import subprocess
import sys

HOLD = ("import sys; from infra.spark.session import _sockets_folder; "
        "print(_sockets_folder(), flush=True); sys.stdin.read()")


def start(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={"TMPDIR": str(folder), "PYTHONPATH": ":".join(filter(None, sys.path))})
    return process, process.stdout.readline().strip()


def test_a_folder_ends_with_its_owner_or_at_the_next_start(tmp_path):
    (tmp_path / "weir-sockets-somebody-elses").mkdir()
    first, first_folder = start(tmp_path)
    killed, killed_folder = start(tmp_path)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    last, last_folder = start(tmp_path)
    assert {str(path) for path in tmp_path.iterdir()} == {
        first_folder, last_folder, str(tmp_path / "weir-sockets-somebody-elses")}
    assert killed_folder not in (first_folder, last_folder)
    for process in (first, last):
        process.communicate("")
    assert [path.name for path in tmp_path.iterdir()] == ["weir-sockets-somebody-elses"]
