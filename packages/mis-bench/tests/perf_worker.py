"""A worker that computes nothing: its times are those of its sources' `speed.json`, and a little noise.

It speaks the protocol of `mis_bench.perf.worker`. `platform` other than `cpu` stands for a device that one process can
hold at a time, as the file that `PERF_WORKER_DEVICE` names.
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
device = Path(os.environ.get("PERF_WORKER_DEVICE", "none"))
if speed["platform"] != "cpu":
    device.touch(exist_ok=False)
about = {
    "source": str(Path(speed.get("source", core)) / "mis_core/__init__.py"),
    "version": "0.0.0",
    "platform": speed["platform"],
    "device": f"1 x {speed['platform']}",
    "dtype": "bfloat16",
    "native": speed["native"],
}
sys.stdout.write(json.dumps(about) + "\n")
sys.stdout.flush()
rng = random.Random(os.getpid())
for line in sys.stdin:
    asked = json.loads(line)
    assert "yardstick" in asked or asked["workload"] in job["requests"]
    calls = asked.get("yardstick") or asked["calls"]
    seconds = 0.01 if "yardstick" in asked else 0.03 * speed["slowdown"]
    wall = [seconds * rng.lognormvariate(0, 0.01) for _ in range(calls)]
    sys.stdout.write(json.dumps({"wall_s": wall, "cpu_s": wall}) + "\n")
    sys.stdout.flush()
if speed["platform"] != "cpu":
    device.unlink()
