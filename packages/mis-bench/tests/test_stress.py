"""`mis-bench stress` and `mis-bench sweep` on targets without a model."""

from collections.abc import Callable

import pytest

from bench_fakes import Done, Fakes, FakeTarget, options_of
from mis_bench.workload import Workload

Bench = Callable[..., Done]


def test_the_loads_are_those_of_the_runbook(bench: Bench, fakes: Fakes) -> None:
    done = bench("stress", "--seconds", "2")
    assert done.status == 0
    found = {case.name: (case.workload.num_items, case.load, case.tolerated) for case in done.results.plan.cases}
    assert list(found) == [
        "large-batch-50", "large-batch-100", "large-batch-200", "concurrent-4x8", "concurrent-8x8", "concurrent-16x4",
        "sustained-16",
    ]  # fmt: skip
    assert found["large-batch-200"][2] == ["out_of_memory"]
    assert (found["concurrent-16x4"][1].max_concurrency, found["sustained-16"][1].rate) == (16, 10.0)
    rows = {row.name: row for row in done.summary.rows}
    assert rows["large-batch-50"].calls == 5
    assert rows["concurrent-4x8"].calls == pytest.approx(4 * 2 / 0.01, abs=8)
    assert 5 < rows["sustained-16"].calls < 40
    assert max(window.seconds for window in done.results.windows) < 2.1


def test_a_load_lasts_half_a_minute_and_the_sustained_one_five(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 1.0)
    lasting = {case.name: case.load.seconds for case in bench("stress").results.plan.cases if case.load.seconds}
    assert lasting == {"concurrent-4x8": 30, "concurrent-8x8": 30, "concurrent-16x4": 30, "sustained-16": 300}


def test_200_items_may_run_out_of_memory_and_100_may_not(
    bench: Bench, fakes: Fakes, failing: Callable[..., Callable[[int, Workload], None]]
) -> None:
    def spoil(items: int) -> Callable[[FakeTarget], None]:
        return lambda target: setattr(target, "before", failing("out_of_memory", items=items))

    fakes.prepare = spoil(200)
    tolerant = bench("stress", "--scenario", "large-batch")
    assert tolerant.status == 0
    fakes.prepare = spoil(100)
    assert bench("stress", "--scenario", "large-batch").status == 1


def test_a_target_that_answers_no_more_afterwards_fails(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        def before(_: int, workload: Workload) -> None:
            from mis_bench.targets.target import CallFailed

            if workload.num_items == 1:
                raise CallFailed("connection_error", "gone")

        target.before = before

    fakes.prepare = prepare
    done = bench("stress", "--scenario", "large-batch")
    assert done.status == 1
    assert all(row.reasons == ["no answer afterwards: connection_error: gone"] for row in done.summary.rows)


SWEEP = ("sweep", "--workload", "probe-20-6-4", "--requests", "40", "--slo-p99-ms", "25")


def test_a_sweep_finds_how_much_load_keeps_to_the_objective(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        target.seconds = lambda _: 0.01 * max(1, target.under_way)  # it does one thing at a time, fairly

    fakes.prepare = prepare
    done = bench(*SWEEP, "--concurrencies", "1,2,4", "--rates", "10,300")
    assert done.status == 0
    rows = {row.name: row for row in done.summary.rows}
    assert list(rows) == ["engine x1", "engine x2", "engine x4", "engine 10/s", "engine 300/s"]
    assert rows["engine x1"].latency
    assert rows["engine x4"].latency
    assert rows["engine x1"].latency.p99_ms < 25 < rows["engine x4"].latency.p99_ms
    assert rows["engine x1"].goodput_rps == pytest.approx(100)
    assert rows["engine 300/s"].latency
    assert rows["engine 300/s"].latency.p99_ms > 25
    assert "engine keeps to a p99 of 25 ms up to " in done.said


def test_all_is_goodput_where_all_requests_keep_to_the_objective(bench: Bench, fakes: Fakes) -> None:
    done = bench(*SWEEP[:-1], "500", "--rates", "5,20", "--concurrencies", "2")
    for row in done.summary.rows:
        assert row.requests_per_second is not None
        assert row.goodput_rps == row.requests_per_second.value


def test_a_sweep_of_targets_alternates_loads_and_checks_scores(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        if target.spec.alias == "b":
            honest = target.scores
            target.scores = lambda workload: honest(workload) + 0.5

    targets = options_of(["a=engine", "b=engine"])
    assert bench(*SWEEP, *targets, "--rates", "50").status == 0
    fakes.prepare = prepare
    done = bench(*SWEEP, *targets, "--rates", "50")
    assert done.status == 1
    assert "correctness" in done.summary.rows[1].reasons[0]


@pytest.mark.parametrize("arguments", [["--rates", "0"], ["--rates", "x"], ["--concurrencies", "1.5"]])
def test_wrong_loads_are_refused(bench: Bench, arguments: list[str]) -> None:
    assert bench("sweep", *arguments).status == 2
