"""Print, as JSON, what a request executes on tiles. Arguments: a checkpoint, and the request as JSON.

`mis-kernels/tests/support/emulation.py` has the environment.
"""

import json
import sys

from emulation import take_counts
from mis_core import Engine
from mis_kernels.backends.native import library

if __name__ == "__main__":
    assert library.has_tiles(), library.why_not()
    request = json.loads(sys.argv[2])
    options = {"dtype": "bfloat16", "chunked_prefill_size": 256, "context_length": 256, "skip_warmup": True}
    with Engine.from_pretrained(sys.argv[1], progress=False, **options) as engine:
        take_counts()
        engine.score(request["query"], request["items"], request["label_token_ids"])
        sys.stdout.write(json.dumps(take_counts()) + "\n")
