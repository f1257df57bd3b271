"""Run as a program with eight host devices: scores of every way of cutting a model over them, as JSON.

python many_devices.py CHECKPOINT DTYPE MESHES [QUANTIZATION]

MESHES is a JSON list of pairs: devices along `data`, devices along `tensor`.
"""

import json
import sys

import jax
import numpy as np

from mis_core import Engine
from mis_core.requests import Sampling, ScoreRequest

# Lengths of which no step is left with less than half of its tokens: every other size would be compiled, too.
QUERY = np.random.default_rng(0).integers(0, 300, 700).tolist()
ITEMS = [np.random.default_rng(n).integers(0, 300, n).tolist() for n in (20, 1, 0, 33, 64, 130, 340, *range(2, 60, 4))]
LABELS = [5, 9, 100]


def largest_share(weights: object) -> float:
    """Return the largest part of the weights' bytes that one device holds."""
    arrays = jax.tree.leaves(weights)
    held: dict[jax.Device, int] = {}
    for array in arrays:
        for shard in array.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values()) / sum(array.nbytes for array in arrays)


def reads(engine: Engine) -> dict[str, list]:
    """Return what is read at rows of a query and of items: most probable tokens, and tokens drawn."""
    random = np.random.default_rng(1)
    request = ScoreRequest(
        query=np.array(QUERY[:100], np.int32),
        item_tokens=random.integers(0, 300, 390).astype(np.int32),
        item_starts=np.array([0, 30, 390], np.int32),
        context_lens=np.full(2, 100, np.int32),
        label_ids=np.zeros((1, 0), np.int32),
        read_lens=np.array([30, 360], np.int32),
        query_reads=100,
        top_tokens=20,
        sampling=Sampling(np.arange(4, dtype=np.int32).reshape(2, 2), temperature=0.8, top_p=0.9),
    )
    output = engine.submit(request).result()
    assert output.top_logits is not None
    assert output.log_sum_exp is not None
    assert output.next_ids is not None
    return {
        "top_logprobs": (output.top_logits - output.log_sum_exp[:, None]).tolist(),
        "next_ids": output.next_ids.tolist(),
    }


def together(engine: Engine) -> str:
    """Return the bits of requests that come together, each of which one device computes, whatever the mesh."""
    futures = []
    for number in range(6):
        random = np.random.default_rng(number)
        request = ScoreRequest(
            query=random.integers(0, 300, 130).astype(np.int32),
            item_tokens=random.integers(0, 300, 60).astype(np.int32),
            item_starts=np.array([0, 25, 60], np.int32),
            context_lens=np.full(2, 130, np.int32),
            label_ids=np.array([LABELS], np.int32),
            return_layout=True,
        )
        futures.append(engine.submit(request))
    outputs = [future.result() for future in futures]
    for output in outputs:
        assert output.placements is not None
        assert len(set(output.placements[:, 1].tolist())) == 1
    return "".join(output.logits.tobytes().hex() for output in outputs)


def main(path: str, dtype: str, meshes: str, quantization: str = "none") -> None:
    found = {}
    for data, tensor in json.loads(meshes):
        options = {"dp_size": data, "tp_size": tensor, "dtype": dtype, "context_length": 1280, "skip_warmup": True}
        options |= {"quantization": quantization, "chunked_prefill_size": 256}
        with Engine.from_pretrained(path, progress=False, **options) as engine:
            cold = engine.score(QUERY, ITEMS, LABELS, return_token_logprobs=True)
            warm = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True)
            assert warm.usage.cached_tokens == len(QUERY), "the query is where its items are computed"
            read = reads(engine)
            spread = together(engine)
            engine.check()
            weights = largest_share(engine._loop._runner._weights)
        assert cold.token_logprobs is not None
        found[f"dp {data} tp {tensor}"] = {
            "logprobs": cold.token_logprobs.tolist(),
            "softmax": warm.scores.tolist(),
            "bits": np.asarray(cold.scores).tobytes().hex(),
            "spread_bits": spread,
            "share_of_weights": weights,
            **read,
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
