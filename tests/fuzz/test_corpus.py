"""Every input that ``make fuzz`` has found to reach code of its own is tried again; the C runs under sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.c_targets import C_TARGETS, build_library, build_replay
from tests.fuzz.corpus import CORPUS, SERDES, inputs
from tests.fuzz.serdes import BETWEEN, TARGETS, check, records_of

TESTS = Path(__file__).parents[1]
LARGEST_CORPUS = 200_000
with_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizers need gcc: install it")


@pytest.mark.parametrize("target", SERDES)
def test_serdes_keep_their_promises_with_every_input(target):
    assert inputs(target)
    for path in inputs(target):
        for serde in TARGETS[target]:
            check(serde, records_of(path.read_bytes()))


def test_the_corpus_is_small_and_each_target_has_one():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < LARGEST_CORPUS
    assert {folder.name for folder in CORPUS.iterdir()} == {*SERDES, *C_TARGETS}
    assert set(TARGETS) == set(SERDES)


def test_an_input_is_a_batch_of_records():
    assert records_of(b"a" + BETWEEN + b"~" + BETWEEN) == [b"a", None, b""]


@pytest.mark.slow
@with_gcc
@pytest.mark.parametrize("target", C_TARGETS)
def test_the_c_code_does_nothing_undefined_with_any_input(tmp_path, target):
    replayed = run([build_replay(target, tmp_path), *inputs(target)])
    assert replayed.stdout == f"{len(inputs(target))} inputs\n"


@pytest.mark.slow
@with_gcc
def test_columns_and_producers_pass_their_tests_under_the_sanitizers(tmp_path):
    """In a Python of its own, into which the sanitizer is loaded first; Python itself leaves memory behind."""
    build_library(tmp_path)
    sanitizer = run(["gcc", "-print-file-name=libasan.so"]).stdout.strip()
    program = (
        "import sys, pytest; from weir.infra.kafka import columns\n"
        "columns.__file__ = sys.argv.pop(1)\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    tests = [TESTS / "infra" / name for name in ("test_columns.py", "test_producer.py")]
    options = ["-q", "-p", "no:cacheprovider", "-k", "not release_their_memory", f"--basetemp={tmp_path / 'base'}"]
    passed = run(
        [sys.executable, "-c", program, tmp_path / "columns.py", *options, *tests],
        LD_PRELOAD=sanitizer,
        ASAN_OPTIONS="detect_leaks=0",
    )
    assert "passed" in passed.stdout


def run(command, **environment):
    ran = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, cwd=TESTS.parent, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran
