"""`mis-bench run --profile callers` on targets without a model."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench_fakes import CALL_S, Done, Fakes, FakeTarget, options_of
from mis_bench.cli import main
from mis_bench.workload import build_workload
from mis_core.aot.roofline import least_flops
from mis_core.models.config import read_model_config

Bench = Callable[..., Done]
SHORT = ("run", "--profile", "callers", "--seconds", "0.25")


def test_the_loads_are_those_of_the_runbook(bench: Bench) -> None:
    done = bench(*SHORT, "--seconds", "0.04")
    assert done.status == 0, done.said
    cases = done.results.plan.cases
    assert [(each.workload.name, each.cache, each.queries) for each in cases[::5]] == [
        (name, cache, queries)
        for cache, queries in (("cold", 1), ("warm", 40))
        for name in ("callers-200-16-20", "callers-300-3-30", "callers-60-1-15")
    ]
    assert [each.name for each in cases[-5:]] == [
        "1x15/60 known, 1 caller",
        "1x15/60 known, 8 callers",
        "1x15/60 known, 32 callers",
        "1x15/60 known, 0.5 of 32 callers",
        "1x15/60 known, 0.8 of 32 callers",
    ]
    loads = [row.load for row in done.summary.rows[:5]]
    assert loads == ["1 caller", "8 callers", "32 callers", "0.5 of 32 callers' rate", "0.8 of 32 callers' rate"]


def test_open_loads_have_a_share_of_the_highest_closed_rate(bench: Bench) -> None:
    done = bench(*SHORT, "--callers", "2,6", "--load", "1x15/60", "--rounds", "3")
    rows = {row.name: row for row in done.summary.rows}
    for callers in (2, 6):
        speed = rows[f"1x15/60 cold, {callers} callers"].requests_per_second
        assert speed
        assert speed.value == pytest.approx(callers / CALL_S, rel=0.05)
    for share in (0.5, 0.8):
        name = f"1x15/60 known, {share:g} of 6 callers"
        windows = [each for each in done.results.windows if each.case == name]
        assert [each.rate for each in windows] == pytest.approx([share * 6 / CALL_S] * 3, rel=0.05)
        due = [call.due_s for call in done.results.calls if call.case == name and call.round == 1]
        assert len(due) == pytest.approx(share * 6 / CALL_S * 0.25, rel=0.25)
        assert max(each for each in due if each is not None) < 0.25


def test_forty_known_queries_are_asked_before_the_clock_starts(bench: Bench, fakes: Fakes) -> None:
    bench(*SHORT, "--load", "3x30/300", "--callers", "4", "--shares", "")
    (target,) = fakes.opened
    known = [index for index, workload in enumerate(target.sent) if workload.num_items == 1][-40:]
    assert known == list(range(known[0], known[0] + 40))
    window = target.sent[known[-1] + 1 :]
    queries = Counter(np.asarray(workload.query).tobytes() for workload in window)
    assert queries.keys() == {np.asarray(target.sent[index].query).tobytes() for index in known}
    assert max(queries.values()) - min(queries.values()) <= 1  # in turn
    assert len({np.asarray(workload.items[0]).tobytes() for workload in window}) == len(window)


def test_every_request_of_a_cold_load_has_a_query_of_its_own(bench: Bench, fakes: Fakes) -> None:
    done = bench(*SHORT, "--load", "16x20/200", "--callers", "8", "--shares", "")
    (target,) = fakes.opened
    calls = [call for call in done.results.calls if "cold" in call.case and call.phase == "timed"]
    end = max(index for index, workload in enumerate(target.sent) if workload.num_items == 1) - 39
    window = target.sent[end - len(calls) : end]
    assert len(window) > 100
    assert len({np.asarray(workload.query).tobytes() for workload in window}) == len(window)


def test_an_open_load_is_skipped_if_its_callers_got_no_answer(
    bench: Bench, fakes: Fakes, failing: Callable[..., object]
) -> None:
    def prepare(target: FakeTarget) -> None:
        target.before = failing("http_error", since=3)  # type: ignore[assignment]

    fakes.prepare = prepare
    done = bench(*SHORT, "--load", "1x15/60", "--callers", "1,2")
    assert done.status == 1
    rows = {row.name: row for row in done.summary.rows}
    assert rows["1x15/60 cold, 0.5 of 2 callers"].reasons == ["nothing was measured"]


def test_targets_are_compared_with_the_first_on_equal_requests(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        target.seconds = lambda _: CALL_S * (4 if target.spec.alias == "slow" else 1)

    fakes.prepare = prepare
    targets = options_of(["engine", "slow=transformers-batched"])
    done = bench(*SHORT, "--load", "1x15/60", "--callers", "2", "--shares", "", *targets)
    assert done.status == 0, done.said
    ratios = [row.ratio.value for row in done.summary.rows if row.ratio]
    assert ratios == pytest.approx([0.25, 0.25], rel=0.1)
    assert all(row.max_abs == 0 for row in done.summary.rows)


def test_findings_say_what_more_callers_and_other_targets_reach(bench: Bench, fakes: Fakes, checkpoint: Path) -> None:
    speeds = {"engine": (1, 1e9), "b8": (4, 1.5e9), "b32": (2, 1.4e9)}

    def prepare(target: FakeTarget) -> None:
        times, target.flops_per_s = speeds[target.spec.alias]
        target.seconds = lambda _: CALL_S * times

    fakes.prepare = prepare
    targets = options_of(["engine", "b8=transformers-batched,batch=8", "b32=transformers-batched,batch=32"])
    short = (*SHORT, "--load", "1x15/60", "--callers", "1,4", "--shares", "", "--rounds", "3")
    done = bench(*short, "--model", str(checkpoint), *targets)
    assert done.status == 0, done.said
    assert "engine multiplies up to 1 GFLOP/s in bfloat16." in done.summary.findings
    (more,) = [each for each in done.summary.findings if each.startswith("1x15/60 cold, 4 callers-b32: ")]
    assert re.fullmatch(r".*: (4|3\.9\d) times \(.*\) the requests/s of 1 caller\.", more)
    (others,) = [
        each for each in done.summary.findings if each.startswith("1x15/60 known, 4 callers-engine: ") and "b32" in each
    ]
    assert re.search(
        r": (2|1\.9\d) times .* of b32, the best of the others and 1\.4\d? times divided by that; ", others
    )
    assert others.endswith("that one multiplies 1.4 times as fast.")


def test_limits_are_least_operations_over_the_best_product_rate(bench: Bench, fakes: Fakes, checkpoint: Path) -> None:
    rates = iter([2e9, 4e9, 3e9])

    def prepare(target: FakeTarget) -> None:
        async def product_rate() -> float:
            return next(rates)

        target.product_rate = product_rate  # type: ignore[method-assign]

    fakes.prepare = prepare
    short = (*SHORT, "--load", "1x15/60", "--callers", "2", "--shares", "", "--rounds", "3")
    done = bench(*short, "--model", str(checkpoint))
    rows = {row.cache: row for row in done.summary.rows}
    config, request = read_model_config(checkpoint), build_workload("callers-60-1-15").request
    flops = least_flops(config, request, normalised=True)
    known = flops - least_flops(config, request | {"items": []}, normalised=True)
    assert [each.flops_per_s for each in done.results.product_rates] == [2e9, 4e9, 3e9]
    for cache, least in (("cold", flops), ("warm", known)):
        speed = rows[cache].requests_per_second
        assert speed
        assert rows[cache].limit_share == pytest.approx(least * speed.value / 4e9)


def test_without_a_product_rate_or_a_model_no_limit_is_told(bench: Bench, fakes: Fakes, checkpoint: Path) -> None:
    short = (*SHORT, "--load", "1x15/60", "--callers", "1", "--shares", "")
    assert {row.limit_share for row in bench(*short, "--model", str(checkpoint)).summary.rows} == {None}
    fakes.prepare = lambda target: setattr(target, "flops_per_s", 1e9)
    done = bench(*short)
    assert {row.limit_share for row in done.summary.rows} == {None}
    assert done.results.product_rates == []


def test_the_profile_has_baselines_and_valid_artifacts(bench: Bench) -> None:
    short = (*SHORT, "--load", "1x15/60", "--callers", "1,4")
    before = bench(*short)
    again = bench(*short, "--baseline", str(before.folder))
    assert again.status == 0, again.said
    assert "ok, p95" in again.said
    checked = CliRunner().invoke(main, ["validate-artifacts", str(again.folder)])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "callers", "--runs", "3"], "--profile callers takes only --callers"),
        (["--profile", "callers", "--workload", "track_low"], "--profile callers takes only --callers"),
        (["--profile", "callers", "--callers", "0"], "0 is not in the range"),
        (["--callers", "4"], "need --profile callers"),
        (["--profile", "smoke", "--shares", "0.5"], "need --profile callers"),
    ],
)
def test_mistakes_are_one_sentence(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench("run", *arguments)
    assert done.status == 2
    assert message in done.said
