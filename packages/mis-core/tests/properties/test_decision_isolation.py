"""Isolation of decisions by trained heads: what else is asked never changes a bit of an answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decision_heads import pointer_package, with_judge
from mis_core import Engine
from mis_testing import tiny_checkpoint

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # which PEFT reads
]

WORDS = ["cat", "dog", "rain", "wet", "dry", "mat", "sleeps", "warm", "12", "é", "<|im_end|>", "\n"]


@pytest.fixture(scope="module", params=["judge", "pointer"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """One model behind two token budgets, the second with hardly any cache, so that it evicts all the time."""
    folder = tmp_path_factory.mktemp("heads")
    if request.param == "pointer":
        path = pointer_package(folder)
    else:
        path = with_judge(tiny_checkpoint(folder / "model", "qwen3", vocab_size=2048))
    options: dict[str, Any] = {"dtype": "bfloat16", "context_length": 2048, "skip_warmup": True, "progress": False}
    engines = [
        Engine.from_pretrained(path, chunked_prefill_size=1024, **options),
        Engine.from_pretrained(path, chunked_prefill_size=768, max_total_tokens=2048 + 64, **options),
    ]
    yield engines
    for engine in engines:
        engine.check()
        engine.close()


def text(seed: int, words: int) -> str:
    return " ".join(Random(seed).choices(WORDS, k=words))


def question(kind: str, seed: int, options: int) -> dict[str, Any]:
    given = {"type": kind, "instructions": text(seed, 1 + seed % 9)}
    match kind:
        case "choice":
            return given | {"criteria": {f"{number} {text(seed + number, 2)}": None for number in range(options)}}
        case "score":
            return given | {"criteria": [text(seed + number, 2) for number in range(options)]}
    return given


states = st.builds(text, st.integers(0, 9), st.sampled_from([1, 40, 150]))
questions = st.builds(
    question, st.sampled_from(["noul", "choice", "score"]), st.integers(0, 99), st.sampled_from([2, 3, 5])
)
several = st.lists(questions, max_size=12)


@settings(max_examples=12, deadline=None)
@given(
    state=states,
    chosen=questions,
    others=several,
    strangers=st.lists(st.tuples(states, several.filter(len)), max_size=3),
)
def test_an_answer_has_the_same_bits_whatever_else_is_asked(
    engines: list[Engine],
    state: str,
    chosen: dict[str, Any],
    others: list[dict[str, Any]],
    strangers: list[tuple[str, list[dict[str, Any]]]],
) -> None:
    """Alone and cold; among others, cached and evicted, beside requests about the same and other states."""

    def ask(engine: Engine, state: str, asked: list[dict[str, Any]]) -> Any:
        return engine.decide(state, {str(number): each for number, each in enumerate(asked)}).answers["0"]

    engines[0].flush_cache()
    alone = ask(engines[0], state, [chosen])
    for engine in engines:
        for among in (others, others[::-1]):
            with ThreadPoolExecutor(4) as pool:
                crowd = [pool.submit(ask, engine, *stranger) for stranger in strangers]
                assert ask(engine, state, [chosen, *among]) == alone
                for each in crowd:
                    each.result()
        engine.check()
