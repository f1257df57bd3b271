"""An estimate for people."""

from mis_bench.estimate.run import Estimate


def as_text(found: Estimate) -> str:
    """Return the figures, a line each, and the breakdown."""
    lines = [
        f"{found.workload}, {found.model} on {found.topology}, dp {found.dp}, tp {found.tp}, bfloat16, "
        + ("softmax over the labels" if found.apply_softmax else "full-vocabulary probabilities"),
        f"{found.requests} requests in {found.steps} steps of up to {found.step_tokens} tokens a device, "
        f"{found.padded_share:.1%} padding",
        "",
        f"{found.items_per_second:10,.0f} items/s",
        f"{found.milliseconds:10.2f} ms a request",
        f"{found.roofline_share:10.0%} of the roofline, {found.roofline_items_per_second:,.0f} items/s",
        f"{found.memory_bytes / 2**20:10,.0f} MiB of {found.memory_limit_bytes / 2**20:,.0f} a device, "
        "with weights and cache",
        "",
        *(f"{stage.milliseconds:10.2f} ms {stage.share:5.1%}  {stage.name}" for stage in found.stages),
        "",
        "Not modelled: " + "; ".join(found.not_modelled) + ".",
    ]
    if found.published:
        lines.append(f"Published for the same job: {found.published}.")
    return "\n".join(lines)
