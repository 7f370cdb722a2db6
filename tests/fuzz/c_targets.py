"""Builds the C of ``infra/kafka`` under the address and undefined-behaviour sanitizers, with GCC."""

from __future__ import annotations

import subprocess
from importlib.metadata import files
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "infra" / "kafka"
C_TARGETS = ("columns", "outgoing")
"""Each is a file here that includes the source of the same name."""
COMPILER = ("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build_library(folder: Path) -> Path:
    """The library that ``weir.infra.kafka.columns`` loads."""
    return _build(folder / "_columns.so", *SANITIZED, "-shared", "-fPIC", *sorted(SOURCES.glob("*.c")))


def build_replay(target: str, folder: Path) -> Path:
    """A program that tries a target with the inputs in the files that it is given."""
    return _build(folder / f"{target}-replay", *SANITIZED, HERE / f"{target}.c", HERE / "replay_main.c")


def build_fuzzer(target: str, folder: Path) -> Path:
    """A program that fuzzes a target with libFuzzer, which knows no coverage by GCC: ``coverage.c`` counts it."""
    coverage = _build(folder / "coverage.o", "-c", HERE / "coverage.c")
    (fuzzer,) = (file.locate() for file in files("atheris") or () if file.name == "libclang_rt.fuzzer_no_main.a")
    libraries = ("-lstdc++", "-lm", "-lpthread")
    return _build(
        folder / f"{target}-fuzzer",
        *(*SANITIZED, "-fsanitize-coverage=trace-pc,trace-cmp"),
        *(HERE / f"{target}.c", HERE / "fuzz_main.c", coverage),
        *("-Wl,-z,muldefs", fuzzer, *libraries),  # libFuzzer, too, has a function for GCC's coverage, which refuses it
    )


def _build(built: Path, *arguments: str | Path) -> Path:
    subprocess.run([*COMPILER, *arguments, "-o", built], check=True)
    return built
