"""Run as a program with two host devices: where the programs of an engine on both exchange something, as JSON.

python collectives.py CHECKPOINT
"""

import json
import re
import sys
from pathlib import Path

from mis_core.aot.hlo import COLLECTIVES
from mis_core.aot.programs import compile_head, compile_step, compile_vocabulary_reads
from mis_core.models.config import read_model_config
from mis_core.models.parallel import make_mesh
from mis_core.runner.buckets import full_step
from mis_core.scheduler.plan import StepShape

COLLECTIVE = re.compile(rf" (?:{'|'.join(COLLECTIVES)})(?:-start)?\(")
SCOPE = re.compile(r'op_name="([^"]*)"')


def main(path: str) -> None:
    config, mesh = read_model_config(Path(path)), make_mesh(2, 1)
    shape = StepShape(tokens=256, scored=64, contexts=2, pages_per_context=8, longest_item=256, alignment=256, shards=2)
    step = compile_step(config, mesh, full_step(shape, 100, 20), shape, dtype="float32", pages=16)
    reads = (
        *compile_head(config, mesh, shape, dtype="float32"),
        *compile_vocabulary_reads(config, mesh, dtype="float32"),
    )
    found = []
    for program in (step, *reads):
        lines = [line for line in program.as_text().splitlines() if COLLECTIVE.search(line)]
        found.append([SCOPE.findall(line) for line in lines])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
