"""Fuzzes one target of ``serdes`` with atheris: ``python -m tests.fuzz.fuzz_serdes TARGET`` and libFuzzer's options."""

import sys

import atheris

with atheris.instrument_imports(include=["weir.pipelines.serdes"]):
    import weir.pipelines.serdes  # noqa: F401

from tests.fuzz.serdes import TARGETS, check, records_of


def main(target: str, *options: str) -> None:
    def try_input(data: bytes) -> None:
        records = records_of(data)
        for serde in TARGETS[target]:
            check(serde, records)

    itself = f"{sys.executable} -m tests.fuzz.fuzz_serdes {target}"  # libFuzzer starts it once more to merge inputs
    atheris.Setup([itself, *options], try_input)
    atheris.Fuzz()


main(*sys.argv[1:])
