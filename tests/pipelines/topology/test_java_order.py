"""The orders of Java's sets; the expected ones were printed by Java 25, from a ``HashSet`` and a ``TreeSet``."""

from __future__ import annotations

import pytest

from weir.pipelines.topology.java_order import TreeSet, in_hash_order

NAMES = ["web", "app", "kiosk", "phone", "car", "mail", "fax", "desk", "bank", "shop", "bus", "rail", "air"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (5, "app web phone car kiosk"),
        (12, "app bus bank shop mail web phone car desk rail kiosk fax"),
        (13, "app bus shop mail rail air bank web phone car desk kiosk fax"),
    ],
)
def test_names_are_in_the_order_of_a_hash_set(count, expected):
    """From 13 names on the table has 32 places instead of 16."""
    assert in_hash_order(NAMES[:count], str) == expected.split()
    assert in_hash_order(NAMES[:count] * 2, str) == expected.split(), "each once"


def test_an_element_of_a_tree_set_stays_where_it_was_put_when_its_order_changes():
    """``rank`` changes between the insertions, as in the Java program that printed the order."""
    rank = {number: number * 7 % 12 for number in range(12)}
    numbers = TreeSet[int](lambda number: (rank[number], number))
    for number in range(12):
        numbers.add(number)
        if number:
            changed = number * 5 % 12
            rank[changed] = (rank[changed] * 3 + 1) % 13
    assert list(numbers) == [0, 7, 11, 2, 4, 10, 9, 6, 1, 3, 5, 8]
    numbers.add(0)
    assert len(list(numbers)) == 12
