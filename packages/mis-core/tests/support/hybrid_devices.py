"""Run as a program with several host devices: scores of a hybrid cut over them, as JSON.

python hybrid_devices.py CHECKPOINT REQUEST MESHES OPTIONS

All but the first are JSON. REQUEST has `query`, `items` and `label_ids`. MESHES lists pairs: devices along `data`,
devices along `tensor`. OPTIONS are those of the engine.
"""

import json
import sys
from typing import Any

import numpy as np

from mis_core import Engine
from mis_core.requests import ScoreRequest

ALONE = 5
"""How many of the items are scored by themselves, too."""

Asked = dict[str, Any]


def scores(engine: Engine, asked: Asked, items: list[list[int]]) -> list[list[float]]:
    """Return the probabilities of some items."""
    result = engine.score(asked["query"], items, asked["label_ids"], apply_softmax=True)
    return np.array(result.scores).tolist()


def shards(engine: Engine, asked: Asked) -> list[int]:
    """Return which devices along `data` compute the items of the request."""
    lens = [len(item) for item in asked["items"]]
    request = ScoreRequest(
        query=np.array(asked["query"], np.int32),
        item_tokens=np.concatenate(asked["items"]).astype(np.int32),
        item_starts=np.cumsum([0, *lens], dtype=np.int32),
        context_lens=np.full(len(lens), len(asked["query"]), np.int32),
        label_ids=np.array([asked["label_ids"]], np.int32),
        return_layout=True,
    )
    output = engine.submit(request).result()
    assert output.placements is not None
    assert output.cached_tokens == len(asked["query"])
    return sorted({*output.placements[:, 1].tolist()})


def main(path: str, request: str, meshes: str, options: str) -> None:
    asked, found = json.loads(request), {}
    for data, tensor in json.loads(meshes):
        with Engine.from_pretrained(
            path, progress=False, skip_warmup=True, dp_size=data, tp_size=tensor, **json.loads(options)
        ) as engine:
            cold, warm = (scores(engine, asked, asked["items"]) for _ in range(2))
            used, alone = shards(engine, asked), []
            for item in asked["items"][:ALONE]:
                engine.flush_cache()
                alone += scores(engine, asked, [item])
            engine.check()
        found[f"dp {data} tp {tensor}"] = {"cold": cold, "warm": warm, "alone": alone, "shards": used}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
