"""Run as a program: start and ask an engine; print how many steps the compiler made, and how many came from the folder.

python start_once.py CHECKPOINT FOLDER
"""

import json
import sys

import jax.monitoring

from mis_core import Engine

EVENTS = {"/jax/compilation_cache/cache_misses": "compiled", "/jax/compilation_cache/cache_hits": "read"}


def main(path: str, folder: str) -> None:
    counts = dict.fromkeys(EVENTS.values(), 0)

    def listen(event: str, **_details: str | int) -> None:
        if event in EVENTS:
            counts[EVENTS[event]] += 1

    jax.monitoring.register_event_listener(listen)
    options = {"chunked_prefill_size": 256, "max_total_tokens": 1024, "context_length": 256, "skip_warmup": True}
    with Engine.from_pretrained(path, compilation_cache_dir=folder, progress=False, **options) as engine:
        scores = engine.score([1, 2, 3], [[4], [5, 6]], [7, 8]).scores
    sys.stdout.write(json.dumps({**counts, "scores": scores.tolist()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
