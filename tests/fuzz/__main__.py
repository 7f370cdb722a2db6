"""Fuzzes every target by coverage for some seconds and keeps the inputs that reach more in ``tests/fuzz/corpus``:
``python -m tests.fuzz``, or ``python -m tests.fuzz --seconds 300 json columns``. What fails stays in ``.weir/fuzz``.

Python is fuzzed with atheris, C with the libFuzzer that atheris has, under the sanitizers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.c_targets import C_TARGETS, build_fuzzer
from tests.fuzz.corpus import CORPUS, DICTIONARY, SERDES

ROOT = Path(__file__).parents[2]
FAILURES = ROOT / ".weir" / "fuzz"
LONGEST_INPUT, LONGEST_S, MOST_MEMORY_MB = 2_000, 10, 3_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join((*SERDES, *C_TARGETS))}; all")
    arguments = parser.parse_args()
    targets = arguments.targets or [*SERDES, *C_TARGETS]
    if unknown := set(targets) - {*SERDES, *C_TARGETS}:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: it has wheels for Linux on x86_64 and Python 3.11 to 3.13; use these")
    FAILURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        failed = [target for target in targets if not fuzz(target, arguments.seconds, Path(folder))]
    if failed:
        print(f"fuzz: {', '.join(failed)} failed; the inputs are in {FAILURES.relative_to(ROOT)}", file=sys.stderr)
    return bool(failed)


def fuzz(target: str, seconds: int, folder: Path) -> bool:
    """Whether nothing failed; the new inputs, and no more than reach all that is reached, are then in the corpus."""
    if target in C_TARGETS:
        command = [str(build_fuzzer(target, folder))]
    else:
        command = [sys.executable, "-m", "tests.fuzz.fuzz_serdes", target]
    print(f"fuzz: {target}", file=sys.stderr)
    tried, kept = folder / f"{target}-tried", CORPUS / target
    tried.mkdir()
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_len={LONGEST_INPUT}", f"-timeout={LONGEST_S}", f"-rss_limit_mb={MOST_MEMORY_MB}"]
    failures = f"-artifact_prefix={FAILURES}/{target}-"
    found = run([*command, *limits, failures, f"-dict={DICTIONARY}", f"-max_total_time={seconds}", tried, kept])
    return found and run([*command, *limits, failures, "-merge=1", kept, tried])


def run(command: list[str | Path]) -> bool:
    # One thread of polars is enough for a few records, and quicker.
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "POLARS_MAX_THREADS": "1"}).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
