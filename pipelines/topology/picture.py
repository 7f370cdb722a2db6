"""A topology as a picture: what ``Topology.describe`` prints, drawn as SVG, each sub-topology in a frame of its own.

Rows of nodes follow the records: a node is below all nodes that it gets records from. Repartition topics and loops are
not drawn as lines; a topic that leaves one frame has the same name where it enters another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

_SUB_TOPOLOGY = re.compile(r"Sub-topology: (.+)")
_NODE = re.compile(r"(Source|Processor|Sink): (\S+) \((.+)\)")
_CHILDREN = re.compile(r"--> (.+)")
_COLOURS = {"Source": "#d5f0dc", "Processor": "#e3ecfb", "Sink": "#fbead1"}
WIDTH, HEIGHT, GAP, BETWEEN, MARGIN = 270, 40, 22, 30, 14
_CHARACTERS = 38
"""How many of the small letters fit into a node."""


@dataclass
class _Node:
    kind: str
    name: str
    about: str
    children: list[str] = field(default_factory=list)


def picture(description: str) -> str:
    """The SVG of what ``describe`` has printed."""
    parts, width, y = list[str](), 0, MARGIN
    for title, nodes in _sub_topologies(description):
        drawn, columns, rows = _drawn(nodes, y + 24)
        frame = columns * (WIDTH + GAP) + GAP
        height = 24 + rows * (HEIGHT + BETWEEN) + 4
        parts.append(
            f'<rect x="{MARGIN}" y="{y}" width="{frame}" height="{height}" rx="6" fill="#fafafa" stroke="#ccc"/>'
            f'<text x="{MARGIN + 10}" y="{y + 17}" fill="#666">{escape(title)}</text>{drawn}'
        )
        width, y = max(width, frame), y + height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * MARGIN}" height="{y}" '
        f'font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )


def _sub_topologies(description: str) -> Iterator[tuple[str, list[_Node]]]:
    title, nodes = "", list[_Node]()
    for line in description.splitlines():
        if found := _SUB_TOPOLOGY.search(line):
            if nodes:
                yield title, nodes
            title, nodes = f"sub-topology {found[1]}", []
        elif found := _NODE.search(line):
            about = "" if found[3] == "stores: []" else found[3]
            nodes.append(_Node(found[1], found[2], about))
        elif nodes and (found := _CHILDREN.search(line)) and found[1] != "none":
            nodes[-1].children += found[1].split(", ")
    if nodes:
        yield title, nodes


def _drawn(nodes: Sequence[_Node], top: int) -> tuple[str, int, int]:
    """The nodes and the lines between them, and how many columns and rows they take."""
    rows = _rows(nodes)
    at = {
        node.name: (MARGIN + GAP + column * (WIDTH + GAP), top + row * (HEIGHT + BETWEEN))
        for row, held in enumerate(rows)
        for column, node in enumerate(held)
    }
    lines = [
        f'<line x1="{at[node.name][0] + WIDTH // 2}" y1="{at[node.name][1] + HEIGHT}" '
        f'x2="{at[child][0] + WIDTH // 2}" y2="{at[child][1]}" stroke="#888"/>'
        for node in nodes
        for child in node.children
        if child in at
    ]
    boxes = [_box(node, *at[node.name]) for node in nodes]
    return "".join((*lines, *boxes)), max(map(len, rows)), len(rows)


def _box(node: _Node, x: int, y: int) -> str:
    words = "".join(
        f'<text x="{x + 8}" y="{y + place}"{style}>{escape(_short(text))}</text>'
        for text, place, style in ((node.name, 16, ""), (node.about, 31, ' fill="#555"'))
        if text
    )
    return (
        f"<g><title>{escape(f'{node.kind}: {node.name} {node.about}'.strip())}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{_COLOURS[node.kind]}" stroke="#999"/>'
        f"{words}</g>"
    )


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _rows(nodes: Sequence[_Node]) -> list[list[_Node]]:
    """The nodes by how many others are on the longest way to them; in a row, those of one parent are side by side."""
    by_name = {node.name: node for node in nodes}
    depths = _depths(by_name)
    rows: list[list[_Node]] = [[] for _ in range(max(depths.values()) + 1)]
    for name, depth in depths.items():
        rows[depth].append(by_name[name])
    for above, row in pairwise(rows):
        places = {child: place for place, node in enumerate(above) for child in node.children}
        row.sort(key=lambda node: places.get(node.name, len(above)))
    return rows


def _depths(nodes: Mapping[str, _Node]) -> dict[str, int]:
    found = dict.fromkeys(nodes, 0)
    for _ in nodes:  # each way has as many steps as there are nodes at most
        for node in nodes.values():
            for child in node.children:
                if child in found:
                    found[child] = max(found[child], found[node.name] + 1)
    return found
