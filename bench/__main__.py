"""``python -m bench [--quick] [--json] [--job JOB]... [--weir-alone] [--dir DIR]``."""

import argparse
from pathlib import Path

from bench import main

parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Weir beside Kafka Streams.")
parser.add_argument("--quick", action="store_true", help="one run of each on 2 million events")
parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
parser.add_argument("--job", action="append", default=[], help="run only this job; may be repeated")
parser.add_argument("--weir-alone", action="store_true", help="leave Kafka Streams out")
parser.add_argument("--dir", type=Path, help="the folder for the bench's files while it runs; .weir by default")
arguments = parser.parse_args()
main(
    quick=arguments.quick,
    as_json=arguments.json,
    jobs=arguments.job,
    weir_alone=arguments.weir_alone,
    dir=arguments.dir,
)
