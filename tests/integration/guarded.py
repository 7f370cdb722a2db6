"""``weir run`` in a folder whose ``weir.toml`` has the login of a broker."""

from __future__ import annotations

import os
import subprocess
import sys

RUN_LIMIT_S = 120


def weir_run(
    folder,
    bootstrap_servers: str,
    login: dict[str, str],
    program: str = "tests.faults.applications:app",
    settings: str = "",
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """``weir run`` in ``folder``, which takes the address, the login and ``settings`` from ``weir.toml`` alone."""
    folder.joinpath("weir.toml").write_text(
        f'bootstrap_servers = "{bootstrap_servers}"\nslots = 2\n{settings}\n[kafka]\n'
        + "".join(f'"{name}" = "{value}"\n' for name, value in login.items())
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from weir.pipelines.cli import main; main()",
            "run",
            program,
            "--until-caught-up",
            *options,
        ],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.getcwd()},
        text=True,
        capture_output=True,
        timeout=RUN_LIMIT_S,
    )
