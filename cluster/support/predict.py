"""Measure three real replicas behind HAProxy, simulate the same, and print both side by side.

python cluster/support/predict.py
python cluster/support/predict.py --zipf 1.2 --factor 150 --requests 3000 --lose 1200 --back 2200

The simulation gets what was asked, in order, with the keys that HAProxy hashes; the cache's size; when a replica was lost
and came back; and how long things took: steps, fronts and callers, with their variation. It is told of no hit and no spill.
"""

import argparse
import math
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from gateway import Gateway, running_gateway
from load import Answer, Ask, ask_all, owners, score_of_ids
from measure import drawn, forget
from mis_bench.capacity.replica import ReplicaShape, RequestShape
from mis_bench.capacity.ring import Ring, key_of
from mis_bench.capacity.simulation import Loss, Outcome, Scenario, simulate
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.server import RunningServer, running_command, stop
from replicas import CONTEXT, running_replicas

STEP_TOKENS, WEIGHT, REPLICAS = 256, 64, 3  # as in FLAGS below, deploy/haproxy/haproxy.cfg, and here
QUERIES, QUERY_TOKENS, ITEM_TOKENS = 300, 700, 3  # 11 pages: a group of eight, and three
CACHE_TOKENS = 40 * 11 * 64
"""40 queries of a replica's 100."""

FLAGS = ("--dtype", "float32", "--chunked-prefill-size", str(STEP_TOKENS), "--max-total-tokens", str(CACHE_TOKENS))
SEEDS = range(4)
