from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from qdeploy.plan import PlanRequest
from qdeploy.plan.frontier import Frontier, frontier
from qdeploy.report.charts.frontier import frontier_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier(PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2, micro_batch=2))


def test_it_is_an_svg_of_its_own_for_light_and_dark(found: Frontier) -> None:
    text = frontier_svg(found)
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    named = {child.get("id"): child.text for child in root}
    assert all(named[label] for label in labels)
    assert "prefers-color-scheme:dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_line_and_dots_for_each_way(found: Frontier) -> None:
    root = ET.fromstring(frontier_svg(found))
    lines = root.findall(f"{SVG}polyline")
    assert [line.get("class") for line in lines] == ["curve s0", "curve s1"]
    for at, (line, curve) in enumerate(zip(lines, found.curves, strict=True)):
        places = [place.split(",") for place in (line.get("points") or "").split()]
        assert len(places) == len(curve.points())
        dots = [d for d in root.findall(f"{SVG}circle") if d.get("class") == f"d{at}"]
        assert [[d.get("cx"), d.get("cy")] for d in dots] == places
        tops = [float(top) for _, top in places]
        assert tops == sorted(tops)
        assert all(96 <= top <= 416 for top in tops)


def test_doubling_is_a_step_of_one_width(found: Frontier) -> None:
    root = ET.fromstring(frontier_svg(found))
    lengths = [t for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "middle"][:-1]
    lefts = [float(t.get("x") or 0) for t in lengths]
    steps = [right - left for left, right in pairwise(lefts)]
    assert max(steps) - min(steps) < 0.2
    assert "1k" in [t.text for t in lengths]


def test_what_was_asked_for_is_marked_and_said(found: Frontier) -> None:
    text = frontier_svg(found)
    assert text.count('class="asked"') == 2
    assert "asked for: 2 x 2048 tokens, fits" in text


def test_nothing_fits_and_names_are_escaped() -> None:
    nothing = frontier(PlanRequest(model="llama-3.1-70b", gpu="T4", strategy="none"))
    odd = nothing.model_copy(update={"model": "<模型> & 1"})
    root = ET.fromstring(frontier_svg(odd))
    title = root.find(f"{SVG}title")
    assert title is not None and title.text is not None
    assert title.text.startswith("<模型> & 1 on 1 x T4")
    assert "nothing fits" in frontier_svg(odd)
