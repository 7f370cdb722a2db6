"""Rolling back after kill -9: what it takes, beside the estimate by which commits keep it short.

``python -m bench.rollback [--dir DIR] [--quick]`` fills a store of one task, changes rows that no commit covers, kills
the process, and has another one roll back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.restore import reopened

CASES = (
    (100_000, 20_000, "random"),
    (100_000, 100_000, "adjacent"),
    (1_000_000, 100_000, "adjacent"),
    (1_000_000, 100_000, "random"),
    (1_000_000, 544_000, "random"),
    (5_000_000, 25_000, "random"),
    (5_000_000, 70_000, "random"),
    (5_000_000, 100_000, "adjacent"),
    (5_000_000, 100_000, "random"),
    (20_000_000, 100_000, "random"),
)
"""Rows of the store, rows changed, and where these are."""


def main() -> None:
    """Run all cases and print one line for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.rollback", description="Measure how long rollbacks take.")
    parser.add_argument("--dir", type=Path, default=Path(".weir"), help="the folder for the stores while it runs")
    parser.add_argument("--quick", action="store_true", help="only stores of up to a million rows")
    arguments = parser.parse_args()
    for rows, changed, order in CASES:
        if arguments.quick and rows > 1_000_000:
            continue
        took = reopened(arguments.dir.absolute() / "bench-rollback", rows, 1, changed, order)
        print(
            f"{changed:>9,} {order} rows of {rows:>11,}: estimated {took['estimate_ms']:6.0f} ms, "
            f"took {took['rollback_ms']:6.0f} ms ({took['rollback_cpu_ms']:.0f} of them CPU)",
            flush=True,
        )


if __name__ == "__main__":
    main()
