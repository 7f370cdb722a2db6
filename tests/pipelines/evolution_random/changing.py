"""Random programs, and random changes of them: those that state goes on under, and some that a start refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.pipelines.evolution_random.programs import AGGREGATES, Kind, Piece, Program

NAMES = ("a", "ab", "abc", "b", "bc", "c", "ca", "cab", "d", "da")
"""Some are parts of others."""
GRACES = (0, 5, 15, 40)
KINDS: tuple[Kind, ...] = ("aggregate", "chain", "table", "lookup", "tables", "streams", "foreign")
Change = Callable[[random.Random, Program], Program | None]
"""None where a program has nothing to change in this way."""


def topics_of(piece: Piece) -> set[str]:
    match piece.kind:
        case "aggregate" | "chain":
            return {"clicks"}
        case "table":
            return {"users"}
        case "lookup":
            return {"clicks", "users"}
        case "tables":
            return {"users", "views"}
        case "streams":
            return {"clicks", "views"}
        case "foreign":
            return {"users", "words"}


def a_piece(rng: random.Random, name: str) -> Piece:
    kind: Kind = rng.choice([*("aggregate",) * 6, *KINDS])
    windows = rng.choice(["", "tumbling", "tumbling", "sessions"]) if kind == "aggregate" else ""
    is_final = bool(windows) and rng.random() < 0.5
    return Piece(
        name,
        kind,
        by=rng.choice(["user", "word"]),
        aggregates=tuple(rng.sample(sorted(AGGREGATES), rng.randint(1, 3))),
        windows=windows,
        grace=rng.choice(GRACES),
        is_final=is_final,
        is_left=rng.random() < 0.5,
        is_upsert=kind in ("aggregate", "table", "tables", "foreign") and not windows and rng.random() < 0.3,
        front=rng.choice(["", "some", "all"]) if kind == "aggregate" else "",
        is_moved=rng.random() < 0.2 and kind in ("aggregate", "table"),
    )


def a_program(rng: random.Random) -> Program:
    return Program(tuple(a_piece(rng, name) for name in rng.sample(NAMES, rng.randint(2, 4))))


def _some(rng: random.Random, program: Program, wanted: Callable[[Piece], bool]) -> Piece | None:
    found = [piece for piece in program.pieces if wanted(piece)]
    return rng.choice(found) if found else None


def _with(rng: random.Random, program: Program, wanted: Callable[[Piece], bool], **changes: object) -> Program | None:
    piece = _some(rng, program, wanted)
    return piece and program.with_piece(replace(piece, **changes))  # type: ignore[arg-type]


def reorder(rng: random.Random, program: Program) -> Program | None:
    return replace(program, pieces=tuple(rng.sample(program.pieces, len(program.pieces))))


def remove(rng: random.Random, program: Program) -> Program | None:
    piece = rng.choice(program.pieces)
    left = tuple(each for each in program.pieces if each != piece)
    return replace(program, pieces=left) if left else None


def suppress(rng: random.Random, program: Program) -> Program | None:
    """In or out; facts go to a table of their own."""
    piece = _some(rng, program, lambda piece: bool(piece.windows))
    if piece is None:
        return None
    return program.with_piece(replace(piece, is_final=not piece.is_final, version=piece.version + 1))


def another_grace(rng: random.Random, program: Program) -> Program | None:
    return _with(rng, program, lambda piece: bool(piece.windows) or piece.kind == "streams", grace=rng.choice(GRACES))


def add_field(rng: random.Random, program: Program) -> Program | None:
    left = [name for name in ("more", "tag") if name not in program.fields]
    return replace(program, fields=(*program.fields, rng.choice(left))) if left else None


def leave_field_out(rng: random.Random, program: Program) -> Program | None:
    there = [name for name in ("more", "tag") if name in program.fields]
    gone = rng.choice(there) if there else ""
    return replace(program, fields=tuple(name for name in program.fields if name != gone)) if there else None


def rename_class(rng: random.Random, program: Program) -> Program | None:
    return replace(program, class_name=rng.choice(["Value", "Click", "Record"]))


def add_aggregate(rng: random.Random, program: Program) -> Program | None:
    piece = _some(rng, program, lambda piece: piece.kind == "aggregate" and len(piece.aggregates) < len(AGGREGATES))
    if piece is None:
        return None
    name = rng.choice([name for name in AGGREGATES if name not in piece.aggregates])
    aggregates = rng.sample([*piece.aggregates, name], len(piece.aggregates) + 1)
    return program.with_piece(replace(piece, aggregates=tuple(aggregates)))


def leave_aggregate_out(rng: random.Random, program: Program) -> Program | None:
    piece = _some(rng, program, lambda piece: piece.kind == "aggregate" and len(piece.aggregates) > 1)
    if piece is None:
        return None
    gone = rng.choice(piece.aggregates)
    return program.with_piece(replace(piece, aggregates=tuple(name for name in piece.aggregates if name != gone)))


def other_aggregates(rng: random.Random, program: Program) -> Program | None:
    aggregates = tuple(rng.sample(sorted(AGGREGATES), rng.randint(1, 4)))
    return _with(rng, program, lambda piece: piece.kind == "aggregate", aggregates=aggregates)


def put_in_front(rng: random.Random, program: Program) -> Program | None:
    return _with(rng, program, lambda piece: piece.kind == "aggregate", front=rng.choice(["", "some", "all"]))


def put_behind(rng: random.Random, program: Program) -> Program | None:
    piece = rng.choice(program.pieces)
    return program.with_piece(replace(piece, is_mapped_behind=not piece.is_mapped_behind))


def split(rng: random.Random, program: Program) -> Program | None:
    piece = _some(rng, program, lambda piece: piece.kind in ("aggregate", "table"))
    return piece and program.with_piece(replace(piece, is_moved=not piece.is_moved))


def other_windows(rng: random.Random, program: Program) -> Program | None:
    windows = rng.choice(["tumbling", "wide", "sessions"])
    return _with(rng, program, lambda piece: bool(piece.windows), windows=windows)


def other_key(rng: random.Random, program: Program) -> Program | None:
    return _with(rng, program, lambda piece: piece.kind == "aggregate", by=rng.choice(["user", "word"]))


def rename_piece(rng: random.Random, program: Program) -> Program | None:
    name = rng.choice([name for name in NAMES if program.piece(name) is None])
    piece = rng.choice(program.pieces)
    pieces = tuple(replace(each, name=name) if each == piece else each for each in program.pieces)
    return replace(program, pieces=pieces)


def other_way_out(rng: random.Random, program: Program) -> Program | None:
    piece = _some(
        rng,
        program,
        lambda piece: piece.kind in ("tables", "foreign") or (not piece.windows and piece.kind == "aggregate"),
    )
    return piece and program.with_piece(replace(piece, is_upsert=not piece.is_upsert))


CHANGES: tuple[Change, ...] = (
    *(reorder, remove, remove, suppress, suppress, another_grace, another_grace, add_field, leave_field_out),
    *(rename_class, add_aggregate, add_aggregate, leave_aggregate_out, other_aggregates, put_in_front, put_behind),
    *(split, split, other_windows, other_key, rename_piece, other_way_out),
)


def changed(rng: random.Random, program: Program, earlier: dict[str, Piece]) -> tuple[Program, list[str]]:
    """``program`` with one to three changes, and their names. ``earlier`` are all pieces that have been, by name."""
    told: list[str] = []
    count = rng.randint(1, 3)
    for _ in range(30):
        if len(told) == count:
            break
        name = rng.choice(["add", "bring back", "bring back", *(change.__name__ for change in CHANGES)])
        free = [each for each in NAMES if program.piece(each) is None]
        gone = [each for each in free if each in earlier]
        new = [each for each in free if each not in earlier]
        found: Program | None = None
        if name == "add" and new:
            found = replace(program, pieces=(*program.pieces, a_piece(rng, rng.choice(new))))
        elif name == "bring back" and gone:
            found = replace(program, pieces=(*program.pieces, earlier[rng.choice(gone)]))
        elif name not in ("add", "bring back"):
            found = next(change for change in CHANGES if change.__name__ == name)(rng, program)
        if (
            name == "rename_piece"
            and found is not None
            and any(each.name in earlier for each in found.pieces if program.piece(each.name) is None)
        ):
            continue  # it would be another piece under the name of an earlier one
        if found is not None and found != program:
            program = found
            told.append(name)
    return program, told
