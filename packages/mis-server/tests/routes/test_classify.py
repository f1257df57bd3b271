"""`POST /v1/classify`: vLLM's shape."""

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from scipy.special import softmax

from mis_core.tokenization import Tokenizer


@pytest.fixture(autouse=True)
def _head(pretended: Any) -> None:
    pretended.info = msgspec.structs.replace(pretended.info, head_labels=("bad", "good"))


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_a_reply_is_vllms(http: httpx.Client, tokenizer: Tokenizer, pretended: Any, path: str) -> None:
    reply = http.post(path, json={"input": ["A cat sleeps.", "Rain."]})
    assert reply.status_code == 200, reply.text
    (request,) = pretended.requests
    ids = [tokenizer.encode(text) for text in ("A cat sleeps.", "Rain.")]
    np.testing.assert_array_equal(request.item_tokens, np.concatenate(ids))
    count = len(request.item_tokens)
    body = reply.json()
    for row, data in enumerate(body["data"]):
        values = 0.01 * ids[row][-1] + np.array([0, 0.1])
        np.testing.assert_allclose(data.pop("probs"), softmax(values), rtol=1e-5)
    assert body == {
        "id": f"classify-{reply.headers['x-request-id']}",
        "object": "list",
        "created": body["created"],
        "model": "some/model",
        "data": [{"index": row, "label": "good", "num_classes": 2} for row in range(2)],
        "usage": {
            "prompt_tokens": count,
            "completion_tokens": 0,
            "total_tokens": count,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    assert "tokenize;dur=" in reply.headers["server-timing"]


def test_labels_of_scores_are_rows_of_the_head(http: httpx.Client, pretended: Any) -> None:
    scores = http.post("/v1/score", json={"query": [1], "items": [[2]]}).json()["scores"]
    named = http.post("/v1/score", json={"query": [1], "items": [[2]], "labels": ["good", "bad"]}).json()["scores"]
    assert named == [scores[0][::-1]]
    assert [request.label_ids.tolist() for request in pretended.requests] == [[[0, 1]], [[1, 0]]]
