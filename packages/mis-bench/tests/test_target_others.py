"""transformers and llama.cpp in this process agree with an oracle, in every way of asking."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mis_bench.targets.row_batches import RowBatches
from mis_bench.targets.target import About, CallFailed, TargetUnavailable
from mis_bench.workload import Workload, build_workload
from mis_testing.options import SMALL_ENGINE
from targets import Local

VOCABULARY = 2048
WITHOUT_LLAMA_CPP = "needs llama.cpp, which takes minutes to compile: pip install './packages/mis-bench[llama-cpp]'"
WAYS = ["transformers-serial", "transformers-batched", "transformers-shared"]

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model(checkpoint_factory) -> Path:
    return checkpoint_factory(vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Local]]:
    targets: dict[str, Local] = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))

        def make(spec: str, **options: str) -> Local:
            key = f"{spec} {options}"
            if key not in targets:
                targets[key] = stack.enter_context(closing(Local(spec, model, **options)))
            return targets[key]

        yield make


@pytest.fixture(scope="module")
def oracle(model: Path) -> Any:
    from mis_testing.oracle import PointwiseOracle

    return PointwiseOracle(model)


def workload(name: str = "ragged-40-9-5", *, apply_softmax: bool = False) -> Workload:
    built = build_workload(name).within(VOCABULARY)
    return Workload(name, built.query, built.items, built.label_token_ids, apply_softmax)


def right(oracle: Any, asked: Workload) -> np.ndarray:
    sequences = [[*np.asarray(asked.query).tolist(), *np.asarray(item).tolist()] for item in asked.items]
    return oracle.score(sequences, asked.label_token_ids.tolist(), apply_softmax=asked.apply_softmax)


@pytest.mark.parametrize("spec", WAYS)
@pytest.mark.parametrize("apply_softmax", [False, True])
def test_transformers_scores_ragged_items_in_every_way(
    made: Callable[..., Local], oracle: Any, spec: str, apply_softmax: bool
) -> None:
    asked = workload(apply_softmax=apply_softmax)
    target = made(spec, dtype="float32", batch="4")
    reply = target.score(asked)
    assert reply.scores.dtype == np.float64
    np.testing.assert_allclose(reply.scores, right(oracle, asked), rtol=2e-3)
    np.testing.assert_array_equal(target.score(asked).scores, reply.scores)  # nothing stays of a call


@pytest.mark.parametrize("spec", WAYS)
def test_transformers_scores_a_single_item(made: Callable[..., Local], oracle: Any, spec: str) -> None:
    asked = workload("probe-7-1-3")
    target = made(spec, dtype="float32", batch="4")
    np.testing.assert_allclose(target.score(asked).scores, right(oracle, asked), rtol=2e-3)


def test_bfloat16_is_near_and_the_default(made: Callable[..., Local], oracle: Any) -> None:
    asked = workload(apply_softmax=True)
    target = made("transformers-shared")
    assert target.about.dtype == "bfloat16"
    assert np.abs(target.score(asked).scores - right(oracle, asked)).max() < 0.05


def test_transformers_says_what_it_is(made: Callable[..., Local]) -> None:
    target = made("transformers-batched", dtype="float32", batch="4")
    about = target.about
    assert (about.name, about.backend, about.dtype) == ("transformers-batched", "transformers", "float32")
    assert about.options["batch"] == 4
    assert about.options["devices"] == "1 x cpu"
    assert about.accelerators is None
    assert set(about.versions) == {"torch", "transformers"}
    assert target.counts()["memory_bytes"] > 1e6
    target.forget()


def test_a_gpu_of_transformers_is_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    import torch

    from mis_bench.targets.pytorch import devices

    assert (
        About("t", "transformers", "m", options={"devices": devices(torch.device("cuda"))}).accelerators
        == "1 x NVIDIA H200"
    )


def test_a_bfloat16_checkpoint_becomes_gguf_in_its_own_process(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason=WITHOUT_LLAMA_CPP)
    program = "import pathlib, sys, mis_bench.targets.llama_cpp as t; t.gguf_file(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_llama_cpp_scores(made: Callable[..., Local], oracle: Any, apply_softmax: bool) -> None:
    pytest.importorskip("llama_cpp", reason=WITHOUT_LLAMA_CPP)
    target = made("llama.cpp", threads="1")
    asked = workload(apply_softmax=apply_softmax)
    scores, wanted = target.score(asked).scores, right(oracle, asked)
    assert np.abs(scores - wanted).max() < (0.05 if apply_softmax else 0.05 * wanted.max())
    np.testing.assert_allclose(target.score(asked).scores, scores)
    many = workload("probe-10-70-2", apply_softmax=True)  # several batches
    others = made("transformers-batched", dtype="float32", batch="70").score(many)
    assert np.abs(target.score(many).scores - others.scores).max() < 0.05
    assert target.about.versions
    target.forget()


def test_llama_cpp_refuses_what_it_cannot_hold(
    made: Callable[..., Local], model: Path, checkpoint_factory: Callable[..., Path]
) -> None:
    pytest.importorskip("llama_cpp", reason=WITHOUT_LLAMA_CPP)
    with pytest.raises(TargetUnavailable, match="qwen3 only"):
        Local("llama.cpp", checkpoint_factory("llama"))
    target = made("llama.cpp", threads="1")
    with pytest.raises(CallFailed, match="at most 2048 tokens") as caught:
        target.score(workload("probe-10-1-2049"))
    assert caught.value.reason == "rejected"


@pytest.mark.parametrize("spec", [WAYS[0], "llama.cpp"])
def test_requests_that_cannot_be_served_are_rejected(made: Callable[..., Local], spec: str) -> None:
    if spec == "llama.cpp":
        pytest.importorskip("llama_cpp", reason=WITHOUT_LLAMA_CPP)
    target = made(spec, **({"threads": "1"} if spec == "llama.cpp" else {}))
    for asked, message in (
        (build_workload("text-5-2-2"), "takes token ids"),
        (build_workload("rerank-5-2-2"), "rerank not supported by .*: it only scores"),
        (replace(workload(), label_token_ids=np.array([3, VOCABULARY], np.int32)), "exceeds the vocabulary of 2048"),
        (workload("probe-9000-1-1"), "exceed the context"),
        (replace(workload(), items=(np.zeros(0, np.int32),)), "an empty item"),
    ):
        with pytest.raises(CallFailed, match=message) as caught:
            target.score(asked)
        assert caught.value.reason == "rejected"
    with pytest.raises(CallFailed, match="does not accept a layout"):
        target.score(workload(), {"scoring_algorithm": "packed"})


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_an_adapter_is_applied_by_peft_as_the_engine_merges_it(
    made: Callable[..., Local], model: Path, tmp_path: Path
) -> None:
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    adapted = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), peft.LoraConfig(target_modules=["q_proj", "up_proj"])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path)
    options = {"dtype": "float32", "merge_lora": str(tmp_path)}
    small = {name: str(value) for name, value in SMALL_ENGINE.items()}
    ours = made("engine", **small | options).score(workload())
    theirs = made("transformers-serial", **options).score(workload())
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=2e-3)
    without = made("transformers-serial", dtype="float32").score(workload())
    assert np.abs(without.scores / theirs.scores - 1).max() > 0.01


def test_scores_that_are_not_finite_fail_the_call(made: Callable[..., Local], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.full((9, 2), np.nan)
    monkeypatch.setattr("mis_bench.targets.pytorch.PyTorch.label_logprobs", lambda *_: nothing)
    with pytest.raises(CallFailed, match="not finite") as caught:
        made("transformers-serial", dtype="float32").score(workload())
    assert caught.value.reason == "missing_scores"


def test_memory_that_is_not_there_is_named(made: Callable[..., Local], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

    target = made("transformers-serial", dtype="float32")
    monkeypatch.setattr("mis_bench.targets.pytorch.PyTorch._padded", full)
    with pytest.raises(CallFailed, match="allocate memory") as caught:
        target.score(workload())
    assert caught.value.reason == "out_of_memory"


@pytest.mark.parametrize(
    ("spec", "missing", "extra"), [(WAYS[0], "torch", "pytorch"), ("llama.cpp", "llama_cpp", "llama-cpp")]
)
def test_a_missing_extra_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, spec: str, missing: str, extra: str
) -> None:
    module = "pytorch" if missing == "torch" else "llama_cpp"
    monkeypatch.delitem(sys.modules, f"mis_bench.targets.{module}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TargetUnavailable, match=rf"{missing}.*mis-bench\[{extra}\]"):
        Local(spec, model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "'dtype' of transformers-batched: Input should be 'bfloat16' or 'float32'"),
        ({"batch": "none"}, "'batch' of transformers-batched: Input should be a valid integer"),
        ({"bach": "3"}, "Known options: dtype, batch"),
    ],
)
def test_wrong_options_are_named(model: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(TargetUnavailable, match=message):
        Local("transformers-batched", model, **options)


def test_a_checkpoint_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetUnavailable, match="transformers cannot load"):
        Local("transformers-serial", tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_rates_are_measured(made: Callable[..., Local], model: Path, dtype: str) -> None:
    engine = Local("engine", model, dtype=dtype, skip_warmup="true")
    with closing(engine):
        for local in (engine, made("transformers-batched", dtype=dtype)):
            target: Any = local.target
            rate = target.blocking.product_rate()
            assert rate is not None
            assert 1e6 < rate < 1e15


def test_whole_rows_of_several_callers_are_computed_in_one_batch(made: Callable[..., Local], oracle: Any) -> None:
    target = made("transformers-batched", dtype="float32", batch="8")
    asked = [workload("probe-7-3-3"), workload("ragged-9-1-5"), workload("probe-7-4-2", apply_softmax=True)]
    opened: Any = target.target
    model = opened.blocking
    sizes: list[int] = []
    compute = model._whole_rows._compute
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(model._whole_rows, "_compute", lambda rows: sizes.append(len(rows)) or compute(rows))
        with model._whole_rows._computing:  # all have come before anyone computes
            calls = [threads.submit(target.score, each) for each in asked]
            while len(model._whole_rows._waiting) < 8:
                time.sleep(0.01)
        for call, each in zip(calls, asked, strict=True):
            np.testing.assert_allclose(call.result().scores, right(oracle, each), rtol=2e-3)
    assert sizes == [8]


def test_rows_of_a_batch_that_fails_fail_and_later_ones_do_not() -> None:
    def compute(rows: Sequence[int]) -> list[int]:
        if 0 in rows:
            raise RuntimeError("out of memory")
        return [10 * row for row in rows]

    batches = RowBatches(compute, 2)
    with pytest.raises(RuntimeError, match="out of memory"):
        batches.find([1, 0, 2])
    assert batches.find([1, 2, 3]) == [10, 20, 30]
