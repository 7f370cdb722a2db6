"""Where the inputs of the targets are, and which targets there are for serdes."""

from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target: each input is a file, named after its digest."""
DICTIONARY = Path(__file__).with_name("dictionary.txt")
"""What inputs are likely to contain."""
SERDES = ("scalars", "keys", "json", "msgpack", "avro", "protobuf")


def inputs(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir())
