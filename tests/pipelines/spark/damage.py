"""Damage that nothing but a comparison with the changelog finds."""

from __future__ import annotations

from pathlib import Path

FIRST_NUMBER = 9
"""Where the first number of a row is that has no nulls: after the flags for nulls and the time."""


def flip_a_bit(instance: Path, key: str) -> None:
    """Flip the lowest bit of the first number in the row of ``key``, wherever the file has that row; other columns have
    numbers, too.

    The file may be open: whoever has it mapped sees the other number at once.
    """
    wanted, found = b"\x02" + key.encode() + b"\x00", 0
    with (instance / "data.mdb").open("r+b") as file:
        data = file.read()
        at = data.find(wanted)
        while at >= 0:
            place = at + len(wanted) - 1 + FIRST_NUMBER
            file.seek(place)
            file.write(bytes([data[place] ^ 1]))
            found += 1
            at = data.find(wanted, at + 1)
    assert found, f"no row of {key!r} in {instance}"
