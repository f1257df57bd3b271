"""What tokenising a request costs is counted before it is spent."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mis_core.errors import RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.service import InlineService, run_blocking
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Meter, Tokenizer, TooMuchWork
from mis_testing.tokenizer import build_tokenizer

QUERY, ITEMS = "Do cats sleep at noon?", [" They do.", "", " 猫" * 40]

WORK: dict[str, tuple[int, Callable[[Tokenizer], Any]]] = {
    "encode": (22, lambda tokenizer: tokenizer.encode(QUERY)),
    "encode_all": (89, lambda tokenizer: tokenizer.encode_all(ITEMS)),
    "starts": (22, lambda tokenizer: tokenizer.starts(QUERY)),
    "label_ids": (4, lambda tokenizer: tokenizer.label_ids(" yes")),
    "cut": (80, lambda tokenizer: tokenizer.cut_after("", [ITEMS[2]], [3])),
    "cut_after": (89, lambda tokenizer: tokenizer.cut_after(QUERY, ITEMS, [2, 2, 2])),
    "join": (2 * 22 + 89, lambda tokenizer: tokenizer.join(QUERY, ITEMS)),
    "items first": (22 + 3 * 22 + 89, lambda tokenizer: tokenizer.join(QUERY, ITEMS, item_first=True)),
    "encode_apart": (22 + 89, lambda tokenizer: tokenizer.encode_apart(QUERY, ITEMS)),
}
"""Characters that must be tokenised at least, and what does so."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer("qwen3"))


def lists(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.tolist()
    return [lists(each) for each in result] if isinstance(result, (list, tuple)) else result


@pytest.mark.parametrize("name", WORK)
def test_the_meter_counts_all_tokenising_and_stops_at_its_limit(tokenizer: Tokenizer, name: str) -> None:
    least, work = WORK[name]
    free = Meter()
    expected = lists(work(tokenizer.metered(free)))
    assert least <= free.cost < least + 150
    exact, short = Meter(free.cost), Meter(free.cost - 1)
    assert lists(work(tokenizer.metered(exact))) == lists(work(tokenizer)) == expected
    with pytest.raises(TooMuchWork) as caught:
        work(tokenizer.metered(short))
    assert pickle.loads(pickle.dumps(caught.value)).most == free.cost - 1
    assert short.cost < free.cost


def test_a_request_that_is_too_much_work_is_refused_as_a_whole(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(context_length=256, vocab_size=5000, architecture="Qwen3ForCausalLM")
    body = {"query": QUERY, "documents": ["a", "b"], "on_error": "item"}
    assert RERANK.read(body, tokenizer, limits, None).documents.count == 2
    monkeypatch.setattr(Limits, "max_work", 200)
    service = InlineService(lambda request: pytest.fail("nothing is computed"), limits, lambda: tokenizer)
    for read in (
        lambda: RERANK.read(body, tokenizer, limits, None),
        lambda: run_blocking(service.answer(RERANK, body)),
    ):
        with pytest.raises(RequestError, match="count as more than 200 characters") as caught:
            read()
        assert (caught.value.code, caught.value.param) == ("too_many_tokens", None)
    ids = {"query": [1], "items": [[2]] * 100, "label_token_ids": [3]}
    assert SCORE.read(ids, None, limits, None).request.num_items == 100  # nothing to tokenise
