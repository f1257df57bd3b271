"""The picture of the front page is what its script draws, and what an engine does."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from mis_bench.workload import build_workload
from mis_core import Engine

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    path = Path(__file__).parents[1] / "docs" / "pictures" / "shared_query.py"
    return SimpleNamespace(**runpy.run_path(str(path)))


def test_the_stored_picture_is_what_its_script_draws(script: SimpleNamespace) -> None:
    assert script.PICTURE.read_text(encoding="utf-8") == script.draw()


def test_what_is_filled_is_what_is_said(script: SimpleNamespace) -> None:
    workload = build_workload(script.WORKLOAD)
    picture = ElementTree.fromstring(script.draw())
    said = [text.text for text in picture.iter(f"{SVG}text")]
    bars = [bar for bar in picture.iter(f"{SVG}rect") if bar.attrib["class"].startswith(("query", "item"))]
    tokens = [float(bar.attrib["width"]) / script._scale(workload) for bar in bars]
    one_by_one, shared = sum(tokens[: 2 * workload.num_items]), sum(tokens[2 * workload.num_items :])
    assert f"{one_by_one:,.0f} tokens computed" in said
    assert f"{shared:,.0f} tokens computed" in said


@pytest.mark.parametrize(("algorithm", "counted"), [("serial", "one_by_one"), ("prefill_extend", "shared")])
def test_an_engine_computes_as_many_tokens(
    script: SimpleNamespace, engine: Engine, algorithm: str, counted: str
) -> None:
    workload = build_workload(script.WORKLOAD).within(engine.vocab_size)
    before = engine.statistics()["new_tokens"]
    engine.score(**workload.request, scoring_algorithm=algorithm, cache_salt=algorithm)
    assert engine.statistics()["new_tokens"] - before == getattr(script, counted)(workload)
