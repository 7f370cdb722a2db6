"""What the type checker tells a program's author before it runs."""

import sys
from pathlib import Path

import pytest
from mypy import api

SUPPRESSED = Path(__file__).resolve().parents[3] / "pipelines" / "dsl" / "suppressed.py"
PROGRAM = """\
from datetime import timedelta

from weir.pipelines.dsl.suppressed import BufferConfig, Suppressed

small = BufferConfig.max_records(10).with_max_bytes(1_000)
Suppressed.until_window_closes(BufferConfig.unbounded())
Suppressed.until_window_closes(small.with_no_bound())
Suppressed.until_window_closes(small.shut_down_when_full())
Suppressed.until_window_closes(small.spill_to_disk_when_full())
Suppressed.until_window_closes(small.shut_down_when_full().with_max_records(20))
Suppressed.until_time_limit(timedelta(seconds=1), small)
Suppressed.until_time_limit(timedelta(seconds=1), small.shut_down_when_full())
Suppressed.until_window_closes(small)  # an error
Suppressed.until_window_closes(BufferConfig.max_bytes(10))  # an error
Suppressed.until_window_closes(small.shut_down_when_full().emit_early_when_full())  # an error
"""


@pytest.mark.slow
def test_final_results_take_strict_buffers_alone(tmp_path):
    """KIP-328: what may emit early cannot be passed where results are final."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    shown, trouble, status = api.run(
        [
            "--config-file=",
            f"--cache-dir={tmp_path}",
            f"--python-executable={sys.executable}",
            "--follow-imports=skip",
            "--explicit-package-bases",
            str(program),
            str(SUPPRESSED),
        ]
    )
    errors = [line for line in shown.splitlines() if line.startswith(str(program))]
    wanted = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# an error")]
    assert [int(line.removeprefix(str(program)).split(":")[1]) for line in errors] == wanted, shown + trouble
    assert all('expected "StrictBufferConfig"' in line for line in errors)
    assert status == 1
