"""Run as a program with several host devices: scores of a hybrid cut over them, as JSON.

python hybrid_devices.py CHECKPOINT REQUEST MESHES OPTIONS

All but the first are JSON. REQUEST has `query`, `items` and `label_ids`. MESHES lists pairs: devices along `data`,
devices along `tensor`. OPTIONS are those of the engine.
"""

import json
import sys

import numpy as np

from mis_core import Engine


def main(path: str, request: str, meshes: str, options: str) -> None:
    asked, found = json.loads(request), {}
    for data, tensor in json.loads(meshes):
        with Engine.from_pretrained(
            path, progress=False, skip_warmup=True, dp_size=data, tp_size=tensor, **json.loads(options)
        ) as engine:

            def scores(items: list[list[int]], engine: Engine = engine) -> list:
                result = engine.score(asked["query"], items, asked["label_ids"], apply_softmax=True)
                return np.array(result.scores).tolist()

            cold, warm, alone = scores(asked["items"]), scores(asked["items"]), []
            for item in asked["items"]:
                engine.flush_cache()
                alone += scores([item])
            engine.check()
        found[f"dp {data} tp {tensor}"] = {"cold": cold, "warm": warm, "alone": alone}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
