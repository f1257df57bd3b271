"""The steps that the scheduler makes of some requests, without a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mis_core.requests import Layout
from mis_core.scheduler.plan import StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.scheduler import Scheduler
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import parse_score_request

_LIMITS = Limits(context_length=1 << 20, vocab_size=1 << 20)


def plan_requests(
    requests: Sequence[Mapping[str, Any]], shape: StepShape, pages: int, slots: int = 0
) -> list[StepPlan]:
    """Plan requests that arrive together until all are answered.

    Args:
        requests: Bodies of `POST /v1/score`, of token ids.
        shape: Room of a step.
        pages: Pages of the KV cache.
        slots: Slots for states; 0: no layer is recurrent.
    """
    scheduler = Scheduler(shape, pages=pages, layout=Layout(), states=slots)
    for number, body in enumerate(requests):
        scheduler.submit(number, parse_score_request(body, None, _LIMITS).request)
    plans, answered = [], 0
    while answered < len(requests):
        plan = scheduler.next_step()
        assert plan is not None, "requests that are not answered have steps to come"
        plans.append(plan)
        values = [
            Values(np.zeros(reading.label_ids.shape, np.float32), np.zeros(len(reading.rows), np.float32))
            for reading in plan.readings
        ]
        answered += len(scheduler.complete(plan, values))
    return plans
