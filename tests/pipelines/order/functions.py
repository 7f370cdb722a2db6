"""What the plain model computes of keys, values and times, by the names that steps have for it.

``building`` has a rendering of its own of what a Weir program says as expressions.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.pipelines.order.description import Value

PREDICATES: dict[str, Callable[[Value], bool]] = {
    "even": lambda value: value.num % 2 == 0,
    "not thirds": lambda value: value.num % 3 != 0,
    "not a": lambda value: value.word != "a",
    "below five": lambda value: value.num < 5,
}
MAPPERS: dict[str, Callable[[Value], Value]] = {
    "more": lambda value: Value(value.num + 1, value.word),
    "rest": lambda value: Value(value.num % 7, value.word),
    "reworded": lambda value: Value(value.num, f"w{value.num % 5}"),
    "turned": lambda value: Value(9 - value.num, value.word[::-1]),
}
KEYS: dict[str, Callable[[Value], str]] = {
    "word": lambda value: value.word,
    "number": lambda value: f"n{value.num % 4}",
    "both": lambda value: f"{value.word}{value.num % 3}",
    "as in topics": lambda value: f"k{value.num % 4}",
}
PAIRS: dict[str, Callable[[str, Value], list[tuple[str, Value]]]] = {
    "both ways": lambda key, value: [(value.word, value), (key, Value(value.num + 1, key))],
    "odd ones": lambda key, value: [(f"k{value.num % 5}", value)] if value.num % 2 else [],
    "by columns": lambda key, value: [(f"n{value.num % 4}", Value(value.num + 1, value.word))],
}
SPREADS: dict[str, Callable[[Value], list[Value]]] = {
    "counted": lambda value: [Value(number, value.word) for number in range(value.num % 3)],
    "halved": lambda value: [value, Value(value.num // 2, "h")],
}
TIMES: dict[str, Callable[[Value, int], int]] = {
    "later": lambda value, ts: ts + 3 * (value.num % 10),
    "earlier": lambda value, ts: ts - 5 * (value.num % 4),
    "its own": lambda value, ts: 900 + value.num,
}
CHAIN, MODULUS = 31, 1009


def time_in(value: Value) -> int:
    """The time that a value has of itself, in ms."""
    return 1_000 + 7 * (value.num % 10) + len(value.word)


def chained(state: Value, value: Value) -> Value:
    """A fold that no other order gives."""
    return Value((state.num * CHAIN + value.num + 1) % MODULUS, value.word)


def chained_otherwise(state: Value, value: Value) -> Value:
    return Value((state.num * CHAIN + 7 * value.num + 3) % MODULUS, state.word)


def unchained(state: Value, value: Value) -> Value:
    return Value((state.num * CHAIN - value.num) % MODULUS, state.word)


def chains_joined(one: Value, other: Value) -> Value:
    return Value((one.num * CHAIN + other.num) % MODULUS, max(one.word, other.word))


class Counted(Value):
    """A value whose number is how many different numbers were ``seen``."""

    seen: frozenset[int]


def counted(seen: frozenset[int], word: str) -> Counted:
    found = Counted(len(seen), word)
    found.seen = seen
    return found


def _counted_with(state: Value | None, value: Value) -> Value:
    if not isinstance(state, Counted):
        return counted(frozenset({value.num}), value.word)
    return counted(state.seen | {value.num}, max(state.word, value.word))


def _counted_together(one: Value, other: Value) -> Value:
    assert isinstance(one, Counted)
    assert isinstance(other, Counted)
    return counted(one.seen | other.seen, max(one.word, other.word))


class Gathered(Value):
    """What is shown of all values that an aggregate has ``taken``, in their order."""

    taken: tuple[Value, ...]


Shown = Callable[[tuple[Value, ...]], Value]


def mean_and_first_words(taken: tuple[Value, ...]) -> Value:
    """The mean without its fraction, and the first three words."""
    return Value(int(sum(value.num for value in taken) / len(taken)), "".join(value.word for value in taken[:3]))


def median_and_least(taken: tuple[Value, ...]) -> Value:
    """The upper one of two medians."""
    return Value(sorted(value.num for value in taken)[len(taken) // 2], min(value.word for value in taken))


def _taken(value: Value | None) -> tuple[Value, ...]:
    return value.taken if isinstance(value, Gathered) else ()


def _gathering(shown: Shown) -> Callable[[Value | None, Value], Value]:
    return lambda state, value: _gathered(shown, (*_taken(state), value))


def _gathering_together(shown: Shown) -> Callable[[Value, Value], Value]:
    return lambda one, other: _gathered(shown, (*_taken(one), *_taken(other)))


def _gathered(shown: Shown, taken: tuple[Value, ...]) -> Value:
    found = Gathered(*shown(taken))
    found.taken = taken
    return found


class Averaged(Value):
    """A mean without its fraction, and what it is made of."""

    total: int
    count: int


def averaged(state: Value | None, num: int, sign: int) -> Value:
    """With one number more, or one less if ``sign`` is -1; -1 is the mean of nothing."""
    total, count = (state.total, state.count) if isinstance(state, Averaged) else (0, 0)
    total, count = total + sign * num, count + sign
    found = Averaged(int(total / count) if count else -1, "mean")
    found.total, found.count = total, count
    return found


FOLDS: dict[str, Callable[[Value | None, Value], Value]] = {
    "sum and last": lambda state, value: Value((state.num if state else 0) + value.num, value.word),
    "first and greatest": lambda state, value: Value(
        state.num if state else value.num, max(state.word, value.word) if state else value.word
    ),
    "count and greatest": lambda state, value: Value(
        state.num + 1 if state else 1, max(state.word, value.word) if state else value.word
    ),
    "distinct and greatest": _counted_with,
    "mean and first words": _gathering(mean_and_first_words),
    "median and least": _gathering(median_and_least),
    "chain": lambda state, value: chained(state or Value(0, ""), value),
    "reduced": lambda state, value: chained(state, value) if state else value,
}
MERGERS: dict[str, Callable[[Value, Value], Value]] = {
    "sum and last": lambda one, other: Value(one.num + other.num, other.word),
    "first and greatest": lambda one, other: Value(one.num, max(one.word, other.word)),
    "count and greatest": lambda one, other: Value(one.num + other.num, max(one.word, other.word)),
    "distinct and greatest": _counted_together,
    "mean and first words": _gathering_together(mean_and_first_words),
    "median and least": _gathering_together(median_and_least),
    "chain": chains_joined,
    "reduced": chained,
}
CHANGE_FOLDS: dict[str, tuple[Callable[[Value | None, Value], Value], Callable[[Value, Value], Value]]] = {
    "sum": (
        lambda state, value: Value((state.num if state else 0) + value.num, "sum"),
        lambda state, value: Value(state.num - value.num, "sum"),
    ),
    "count": (
        lambda state, value: Value((state.num if state else 0) + 1, "count"),
        lambda state, value: Value(state.num - 1, "count"),
    ),
    "mean": (
        lambda state, value: averaged(state, value.num, 1),
        lambda state, value: averaged(state, value.num, -1),
    ),
    "chain": (lambda state, value: chained(state or Value(0, ""), value), unchained),
    "reduced": (lambda state, value: chained(state, value) if state else value, unchained),
}


def summed(state: Value | None, value: Value) -> Value:
    """Of the first stream of a cogroup by columns: its numbers."""
    return Value((state.num if state else 0) + value.num, state.word if state else "")


def worded(state: Value | None, value: Value) -> Value:
    """Of the second one: its greatest word."""
    return Value(state.num if state else 0, max(state.word if state else "", value.word))


def columns_joined(one: Value, other: Value) -> Value:
    """Of two sessions of it."""
    return Value(one.num + other.num, max(one.word, other.word))


def joined(one: Value | None, other: Value | None) -> Value:
    """What all joins make of two values."""
    one, other = one or Value(500, "-"), other or Value(900, "+")
    return Value((one.num * 3 + other.num) % MODULUS, (one.word + other.word)[-2:])


def time_of(value: Value) -> int:
    """Of a record that was held back by the wall clock."""
    return 1_000 + value.num


def header_of(value: Value) -> str:
    """The header of a record of a topic that has some."""
    return f"h{value.num}"


def is_deletion(value: Value) -> bool:
    return value.num % 4 == 3
