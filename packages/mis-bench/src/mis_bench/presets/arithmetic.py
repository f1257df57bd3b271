"""The least arithmetic of a request, from which the limit of its row follows."""

from mis_bench.options import checkpoint
from mis_bench.workload import build_workload
from mis_core.errors import ModelError


def least_flops_of(workload: str, model: str | None, *, is_known: bool = False) -> float | None:
    """Return the least operations of a request, those of a known query left out; None without a model's shape."""
    directory = checkpoint(model)
    if directory is None:
        return None
    from mis_core.aot.roofline import least_flops
    from mis_core.models.config import read_model_config

    try:
        config = read_model_config(directory, ignore_unknown=True)
    except ModelError:  # another target's: ours would have been refused before
        return None
    request = build_workload(workload).request
    known = least_flops(config, request | {"items": []}, normalised=True) if is_known else 0.0
    return least_flops(config, request, normalised=True) - known
