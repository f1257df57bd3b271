"""A worker that computes nothing: its times are those of its sources' `speed.json`, and a little noise.

It speaks the protocol of `mis_bench.perf.worker`. `PERF_WORKER_DEVICE` names a file that stands for a device which one
process can hold at a time.
"""

import json
import os
import random
import sys
from pathlib import Path

core = Path(os.environ["PYTHONPATH"].split(":")[1])
speed = json.loads((core / "mis_core/speed.json").read_text())
job = json.loads(sys.stdin.readline())
if speed.get("dies"):
    sys.exit("the device is on fire")
device = os.environ.get("PERF_WORKER_DEVICE")
if device:
    Path(device).touch(exist_ok=False)


def write(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


about = {"version": "0.0.0", "devices": "1 x cpu", "dtype": job["options"]["dtype"]}
write(about | {"source": str(Path(speed.get("source", core)) / "mis_core/__init__.py")})
rng, calls = random.Random(os.getpid()), 0
for line in sys.stdin:
    asked = json.loads(line)
    if "score" in asked:
        calls += 1
        request, took_ms = asked["score"], 30 * speed["slowdown"] * rng.lognormvariate(0, 0.01)
        score = speed.get("score", 0.25)
        scores = [[score for _ in request["label_token_ids"]] for _ in request["items"]]
        times = {"engine": took_ms, "cpu": took_ms}
        write({"stages_ms": times, "scores": scores, "cached_tokens": speed.get("cached_tokens", 0)})
    else:
        write({"compilations": calls * speed.get("compiles", 0)} if "counts" in asked else {})
if device:
    Path(device).unlink()
