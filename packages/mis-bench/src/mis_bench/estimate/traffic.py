"""The steps that a scheduler makes of some requests for one workload, without a device."""

import numpy as np

from mis_bench.workload import Workload
from mis_core.scheduler.plan import StepPlan, StepShape
from mis_core.scheduler.scheduler import Policy, Scheduler
from mis_core.scoring.limits import Limits
from mis_core.scoring.validation import parse_score_request

_LIMITS = Limits(context_length=1 << 20, vocab_size=1 << 20)


def plan_requests(
    workload: Workload, count: int, shape: StepShape, pages: int, *, apply_softmax: bool = False
) -> list[StepPlan]:
    """Plan requests that arrive together, each with a query of its own, until all are answered.

    Args:
        workload: What each request asks.
        count: Requests.
        shape: Room of a step.
        pages: Pages of the KV cache.
        apply_softmax: Ask for a softmax over the labels, which needs no pass over the vocabulary.
    """
    scheduler = Scheduler(shape, pages=pages, policy=Policy())
    for number in range(count):
        body = workload.another(number).request | {"apply_softmax": apply_softmax}
        scheduler.submit(number, parse_score_request(body, None, _LIMITS))
    plans, answered = [], 0
    while answered < count:
        plan = scheduler.next_step()
        assert plan is not None, "requests that are not answered have steps to come"
        plans.append(plan)
        values = [np.zeros(reading.label_ids.shape, np.float32) for reading in plan.readings]
        rows = [np.zeros(len(reading.items), np.float32) for reading in plan.readings]
        answered += len(scheduler.complete(plan, values, list(rows)))
    return plans
