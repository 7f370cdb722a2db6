"""The orders in which Java's hash sets and tree sets have their elements.

The text of ``TopologyDescription`` depends on them: its lists of nodes are tree sets by the size of what lies below a
node, which still changes after a node has been put into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_SMALLEST_TABLE = 16
_LOAD_FACTOR = 0.75


def in_hash_order(items: Iterable[T], name_of: Callable[[T], str]) -> list[T]:
    """``items`` as a ``HashSet`` of their names has them, or the values of a ``HashMap`` by name."""
    distinct, slots = list(dict.fromkeys(items)), _SMALLEST_TABLE
    while len(distinct) > slots * _LOAD_FACTOR:
        slots *= 2
    return sorted(distinct, key=lambda item: _slot(name_of(item), slots))


def _slot(name: str, slots: int) -> int:
    code = 0
    for character in name:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code ^ code >> 16) & (slots - 1)


@dataclass(eq=False)
class _Entry(Generic[T]):
    item: T
    above: _Entry[T] | None
    below: list[_Entry[T] | None] = field(default_factory=lambda: [None, None])
    """What comes before it and what comes after it."""
    is_red: bool = True

    @property
    def side(self) -> int:
        """Its index in ``below`` of the entry above it."""
        assert self.above is not None
        return int(self.above.below[1] is self)


class TreeSet(Generic[T]):
    """A ``TreeSet``, a red-black tree: an element stays where it was put, even if its order changes afterwards."""

    def __init__(self, order: Callable[[T], object]) -> None:
        """``order`` is compared with ``<``, and is different for different elements."""
        self._order = order
        self._root: _Entry[T] | None = None

    def __iter__(self) -> Iterator[T]:
        def walk(entry: _Entry[T] | None) -> Iterator[T]:
            if entry is not None:
                yield from walk(entry.below[0])
                yield entry.item
                yield from walk(entry.below[1])

        return walk(self._root)

    def add(self, item: T) -> None:
        if self._root is None:
            self._root = _Entry(item, None, is_red=False)
            return
        above, side = self._root, 0
        place: _Entry[T] | None = self._root
        while place is not None:
            if place.item is item:
                return
            above = place
            side = int(self._order(above.item) < self._order(item))  # type: ignore[operator]
            place = above.below[side]
        above.below[side] = entry = _Entry(item, above)
        self._balance(entry)

    def _balance(self, entry: _Entry[T]) -> None:
        while entry.above is not None and entry.above.is_red:
            above = entry.above
            top, side = above.above, above.side
            assert top is not None
            other = top.below[1 - side]
            if other is not None and other.is_red:
                above.is_red = other.is_red = False
                top.is_red, entry = True, top
                continue
            if entry.side != side:
                self._rotate(above, side)
                entry, above = above, entry
            above.is_red, top.is_red = False, True
            self._rotate(top, 1 - side)
        assert self._root is not None
        self._root.is_red = False

    def _rotate(self, entry: _Entry[T], side: int) -> None:
        """Lower ``entry`` to ``side``; what was on the other side takes its place."""
        riser, above = entry.below[1 - side], entry.above
        assert riser is not None
        if above is None:
            self._root = riser
        else:
            above.below[entry.side] = riser
        entry.below[1 - side] = moved = riser.below[side]
        if moved is not None:
            moved.above = entry
        riser.below[side], riser.above, entry.above = entry, above, riser
