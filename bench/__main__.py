"""``python -m bench [--quick] [--json] [--job JOB]... [--peers NAME,...] [--weir-alone] [--fresh] [--dir DIR]``."""

import argparse
from pathlib import Path

from bench import main
from bench.peers import DEFAULT, PEERS

parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Weir beside its peers.")
parser.add_argument("--quick", action="store_true", help="one run of each job that Kafka Streams has, on fewer events")
parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
parser.add_argument("--job", action="append", default=[], help="run only this job; may be repeated")
parser.add_argument(
    "--peers",
    default="",
    metavar="NAME,...",
    help=f"of {', '.join(peer.name for peer in PEERS)}, or all; {','.join(DEFAULT)} by default",
)
parser.add_argument("--weir-alone", action="store_true", help="leave all peers out")
parser.add_argument("--events", type=int, help="so many events instead of the usual number")
parser.add_argument(
    "--fresh", action="store_true", help="begin anew instead of going on with a bench that was interrupted"
)
parser.add_argument("--dir", type=Path, help="the folder for the bench's files; .weir by default")
arguments = parser.parse_args()
main(
    quick=arguments.quick,
    as_json=arguments.json,
    jobs=arguments.job,
    peers=[name for name in arguments.peers.split(",") if name],
    weir_alone=arguments.weir_alone,
    events=arguments.events,
    fresh=arguments.fresh,
    dir=arguments.dir,
)
