"""Pictures of topologies: every node is drawn once, below those that it gets records from, with a line from each."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weir.pipelines.topology.picture import HEIGHT, WIDTH, picture

DESCRIPTIONS = {path.stem: path.read_text() for path in (Path(__file__).parent / "descriptions").glob("*.txt")}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", sorted(DESCRIPTIONS))
def test_every_node_is_drawn_and_every_line_goes_down(name):
    description = DESCRIPTIONS[name]
    drawn = ElementTree.fromstring(picture(description))
    nodes = re.findall(r"(?:Source|Processor|Sink): (\S+) \(", description)
    boxes = {
        box.findtext(f"{SVG}title").split(": ")[1].split()[0]: box.find(f"{SVG}rect") for box in drawn.iter(f"{SVG}g")
    }
    assert sorted(boxes) == sorted(nodes)
    places = {name: (int(rect.get("x")), int(rect.get("y"))) for name, rect in boxes.items()}
    assert len(set(places.values())) == len(nodes), "none covers another"
    wide, high = int(drawn.get("width")), int(drawn.get("height"))
    assert all(x + WIDTH <= wide and y + HEIGHT <= high for x, y in places.values())
    lines = [tuple(int(line.get(end)) for end in ("x1", "y1", "x2", "y2")) for line in drawn.iter(f"{SVG}line")]
    wanted = [
        (parent, child)
        for parent, children in re.findall(r": (\S+) \([^\n]*\n      --> ([^\n]+)", description)
        for child in children.split(", ")
        if child != "none"
    ]
    found = {
        (places[parent][0] + WIDTH // 2, places[parent][1] + HEIGHT, places[child][0] + WIDTH // 2, places[child][1])
        for parent, child in wanted
    }
    assert set(lines) == found
    assert all(above < below for _, above, _, below in lines)
