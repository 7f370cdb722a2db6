"""A folder that cannot be written is one sentence with the way out, for every command that writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.pipelines.cli.by_user import by_user, counted, counts
from tests.pipelines.cli.typed import Terminal
from tests.pipelines.spark.evolving import clicks
from weir.pipelines.cli.app import app
from weir.state.engine import environment

COMMANDS = [
    ["run", "weir.pipelines.examples.flights:app"],
    ["demo", "--no-ui"],
    ["bench", "--quick"],
    *([command, "shop"] for command in ("commit", "pause", "resume", "snapshot", "stop", "compact")),
    ["restore", "shop", "0_0"],
    ["reset", "shop", "--yes"],
    *(["kafka", command] for command in ("start", "list")),
    *(["kafka", command, "orders"] for command in ("create", "produce", "consume", "delete")),
    ["backfill", "run", "shop", "--everything"],
    ["backfill", "swap", "shop", "b"],
    ["backfill", "discard", "shop", "b"],
    ["migrate", "from-group", "weir.pipelines.examples.flights:app", "g"],
    ["migrate", "from-checkpoints", "weir.pipelines.examples.flights:app", "."],
    ["migrate", "from-spark", "weir.pipelines.examples.flights:app", "."],
]


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for directory in ("file", "file/weir"):
        result = CliRunner().invoke(app, [*arguments, "--dir", directory], input="")
        assert result.exit_code == 1, result.output
        assert flat(result.stderr) == (
            f"weir: {tmp_path}/file is a file, and Weir needs a folder; name one with `--dir DIR` or the variable "
            "WEIR_DIR"
        )


def test_the_other_ways_out_work(tmp_path, monkeypatch):
    """Resetting an unknown application gets past the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    run = lambda *arguments: flat(CliRunner().invoke(app, ["reset", "shop", *arguments]).stderr)
    assert "is a file" in run("--dir", "file/weir")
    assert "nothing has run in" in run("--dir", "elsewhere")
    monkeypatch.setenv("WEIR_DIR", "elsewhere")
    assert "nothing has run in" in run()
    assert not (tmp_path / "elsewhere").exists()


def test_state_on_a_network_file_system_is_refused_and_put_on_a_local_disk(terminal, monkeypatch, elsewhere):
    """The table of mounts says that the folder's disk is one of another host."""
    mounts = terminal.folder / "mounts"
    mounts.write_text(f"{mount(terminal.folder, 'nfs4')}\n{mount(elsewhere, 'tmpfs')}\n")
    monkeypatch.setattr(environment, "_MOUNTS", mounts)
    terminal.topics.rows["clicks", 0] = clicks(0, 20)
    program = terminal.has("app", by_user())
    found = terminal.run(program)
    assert found.code == 1
    assert "on a network file system (nfs4)" in found.text
    assert "choose a folder on a local disk with `--dir DIR`" in found.text
    done = terminal.run(program, "--dir", str(elsewhere))
    assert done.code == 0, done.text
    assert counts(Terminal(elsewhere, terminal.clusters, terminal.programs)) == counted(terminal)


def mount(folder: Path | str, kind: str) -> str:
    """The line of a folder's device in a table of mounts."""
    device = os.stat(folder).st_dev
    return f"36 35 {os.major(device)}:{os.minor(device)} / {folder} rw,noatime - {kind} device rw"


def test_a_folder_without_permission_is_refused(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o500)
    code = (
        "import os\n"
        "from weir.pipelines.cli import app, main\n"
        "from weir.pipelines.operations import reset\n"  # another user may not be able to read the installation
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "main()\n"
    )
    tmp_path.chmod(0o755)
    for folder in ("mine", "mine/weir"):
        found = subprocess.run(
            [sys.executable, "-c", code, "reset", "shop", "--dir", folder],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert found.returncode == 1
        assert f"/{folder} cannot be written (Permission denied); name another folder" in flat(found.stderr)
        assert "Traceback" not in found.stderr
