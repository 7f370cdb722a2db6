"""``python -m bench [--quick] [--json] [--job JOB]... [--dir DIR]``."""

import argparse
from pathlib import Path

from bench import main

parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Weir beside Kafka Streams.")
parser.add_argument("--quick", action="store_true", help="one run of each on 2 million events")
parser.add_argument("--json", action="store_true", help="print the workloads as one JSON object")
parser.add_argument("--job", action="append", default=[], help="this job alone; may be given again")
parser.add_argument("--dir", type=Path, help="holds what the bench leaves while it runs; .weir by default")
arguments = parser.parse_args()
main(quick=arguments.quick, as_json=arguments.json, jobs=arguments.job, dir=arguments.dir)
