"""Commands written for sglang-jax and SGLang start this server: every block of the original runbooks."""

import dataclasses
import json
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result

from mis_core import Engine
from mis_core.config import EngineConfig
from mis_server.cli import main
from mis_server.compatibility import ACCEPTED, WHY_WITHOUT_LIMIT
from mis_server.settings import ServerConfig
from mis_testing.server import running_server

MULTI_ITEM = "--disable-radix-cache --chunked-prefill-size -1 --attention-backend fa"
SERVER = "--model-path Qwen/Qwen3-0.6B --host 0.0.0.0 --trust-remote-code --dtype bfloat16 --tp-size 1"
DENSE = "--multi-item-mask-impl dense --multi-item-segment-fallback-threshold 0"
MODE = (
    "--model-path Qwen/Qwen3-0.6B --trust-remote-code --port 30000 --device tpu --dtype bfloat16 "
    "--attention-backend fa --mem-fraction-static 0.7 --page-size 64 --skip-server-warmup"
)
PREFILL_EXTEND = (
    "--max-running-requests 12 --chunked-prefill-size -1 --max-prefill-tokens 32768 "
    "--precompile-token-paddings 1024 4096 16384 --precompile-bs-paddings 1 2 3 4 5 6 7 8 9 10 11 12 "
    "--multi-item-scoring-delimiter 151643 --multi-item-scoring-chunk-size 500 --max-multi-item-count 512 "
    f"--max-multi-item-seq-len 32768 {DENSE} --multi-item-enable-prefill-extend --multi-item-extend-batch-size 12 "
    "--multi-item-prefill-extend-cache-timeout 60 --enable-scoring-cache"
)

COMMANDS = {
    "validation, many items": f"{SERVER} --port 30010 --multi-item-scoring-delimiter 151643 "
    f"--multi-item-scoring-chunk-size 2 {MULTI_ITEM}",
    "validation, one by one": f"{SERVER} --port 30011 --attention-backend fa",
    "comparison, portable": f"{SERVER} --port 30010 --multi-item-scoring-delimiter 151643 "
    f"--multi-item-scoring-chunk-size 500 {DENSE} {MULTI_ITEM}",
    "comparison, native": f"{SERVER} --port 30011 --multi-item-scoring-delimiter 151643 "
    f"--multi-item-scoring-chunk-size 64 {DENSE} {MULTI_ITEM}",
    "comparison, PyTorch": "--model-path Qwen/Qwen3-0.6B --host 0.0.0.0 --port 30020 --trust-remote-code --tp-size 1 "
    "--multi-item-scoring-delimiter 151643 --disable-radix-cache --chunked-prefill-size -1",
    "comparison, segments": f"{SERVER} --port 30010 --multi-item-scoring-delimiter 151643 "
    "--multi-item-scoring-chunk-size 500 --multi-item-mask-impl auto --multi-item-segment-fallback-threshold 32768 "
    f"{MULTI_ITEM}",
    "dense baseline": f"--model-path Qwen/Qwen3-0.6B --port 30000 {DENSE} --disable-radix-cache",
    "first version": "--model meta-llama/Llama-3-8B --multi-item-scoring-delimiter 128009 --disable-radix-cache "
    "--chunked-prefill-size -1",
    "isolation": "--model-path Qwen/Qwen3-0.6B --port 30000 --multi-item-scoring-delimiter 1 --disable-radix-cache",
    "profiling": "--model-path meta-llama/Llama-3.2-1B-Instruct --device tpu --port 30000 --trust-remote-code "
    "--dtype bfloat16 --tp-size 1 --skip-server-warmup",
    "test plans": "--model-path meta-llama/Llama-3.2-1B-Instruct --device tpu --dtype bfloat16 --tp-size 1 "
    "--context-length 4096 --download-dir /dev/shm --random-seed 3 --tokenizer-path meta-llama/Llama-3.2-1B-Instruct "
    "--revision main",
    "several chips": f"{MODE} --tp-size 4 --max-multi-item-seq-len 65536 --multi-item-scoring-delimiter 151643 "
    f"{MULTI_ITEM}",
    "single item": f"{MODE} --max-running-requests 32 --chunked-prefill-size 4096 "
    "--precompile-token-paddings 1024 4096 --precompile-bs-paddings 1 4 8 16 32",
    "packed": f"{MODE} --max-running-requests 32 --chunked-prefill-size -1 --disable-radix-cache "
    "--max-prefill-tokens 32768 --precompile-token-paddings 1024 4096 16384 --precompile-bs-paddings 1 4 8 16 32 "
    "--multi-item-scoring-delimiter 151643 --multi-item-scoring-chunk-size 32 --max-multi-item-count 512 "
    f"--max-multi-item-seq-len 32768 {DENSE}",
    "prefill and extend": f"{MODE} {PREFILL_EXTEND}",
    "selector": "--model-path m --multi-item-scoring-algorithm packed",
}

NAMED = (
    "--trust-remote-code", "--attention-backend", "--page-size", "--chunked-prefill-size", "--device", "--random-seed",
    "--download-dir", "--tokenizer-path", "--revision", "--multi-item-mask-impl", "--multi-item-scoring-algorithm",
    "--multi-item-segment-fallback-threshold", "--multi-item-prefill-extend-cache-timeout",
    "--multi-item-enable-prefill-extend", "--multi-item-extend-batch-size", "--enable-scoring-cache",
    "--max-multi-item-count", "--max-multi-item-seq-len", "--precompile-token-paddings", "--precompile-bs-paddings",
)  # fmt: skip


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments], env=env, prog_name="mis-server")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_starts_the_server(served: list[ServerConfig], command: str) -> None:
    done = run(*shlex.split(command))
    assert done.exit_code == 0, done.stderr
    words = set(shlex.split(command))
    engine = served[0].engine
    assert engine.model in words
    if "--multi-item-enable-prefill-extend" in words:
        assert (engine.scoring_algorithm, engine.multi_item_scoring_delimiter) == ("prefill_extend", None)
    else:
        assert engine.scoring_algorithm == ("packed" if "packed" in words else "auto")
        assert (engine.multi_item_scoring_delimiter is None) == ("--multi-item-scoring-delimiter" not in words)
        assert engine.mask_impl == ("dense" if "dense" in words else "auto")


def test_the_commands_have_every_flag_that_is_named() -> None:
    used = {word for command in COMMANDS.values() for word in shlex.split(command)}
    assert set(NAMED) <= used


def test_flags_with_a_counterpart_set_it(served: list[ServerConfig]) -> None:
    run(*shlex.split(COMMANDS["comparison, portable"] + " --max-multi-item-count 512 --disable-precompile"))
    engine = EngineConfig(
        model="Qwen/Qwen3-0.6B",
        dtype="bfloat16",
        multi_item_scoring_delimiter=151643,
        multi_item_scoring_chunk_size=500,
        mask_impl="dense",
        disable_radix_cache=True,
        skip_warmup=True,
    )
    assert served == [ServerConfig(engine=engine, host="0.0.0.0", port=30010, max_items_per_request=512)]


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_log_line_says_why_a_flag_is_not_needed(served: list[ServerConfig], tmp_path: Path) -> None:
    config = tmp_path / "mis.toml"
    config.write_text("precompile-bs-paddings = [1, 2]\nmulti-item-segment-fallback-threshold = 0\n")
    flags = ("--page-size", "64", "--chunked-prefill-size", "-1", "--log-format", "json")
    done = run("m", *flags, "--config", str(config), MIS_RANDOM_SEED="3")
    whys = {flag.name: flag.why for flag in ACCEPTED}
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == [
        f"--page-size: {whys['page_size']}",
        f"MIS_RANDOM_SEED: {whys['random_seed']}",
        f"precompile_bs_paddings in {config}: {whys['precompile_bs_paddings']}",
        f"multi_item_segment_fallback_threshold in {config}: {whys['multi_item_segment_fallback_threshold']}",
        f"--chunked-prefill-size: {WHY_WITHOUT_LIMIT}",
    ]
    assert served == [ServerConfig(engine=EngineConfig(model="m"), log_format="json")]


def test_flags_that_are_not_given_say_nothing(served: list[ServerConfig]) -> None:
    assert run("m", MIS_TRUST_REMOTE_CODE="0").stderr == ""
    assert served


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--enable-scoring-cache --disable-radix-cache", "--enable-scoring-cache: enable_scoring_cache and "),
        ("--multi-item-enable-prefill-extend --scoring-algorithm packed", "scoring_algorithm=packed contradict"),
        ("--multi-item-enable-prefill-extend --multi-item-algorithm serial", "scoring_algorithm=serial contradict"),
        ("--chunked-prefill-size -2", "--chunked-prefill-size: chunked_prefill_size must be a multiple of 256, not -2"),
        ("--page-size 0", "'--page-size': 0 is not in the range x>=1"),
        ("--multi-item-prefill-extend-cache-timeout -1", "-1.0 is not in the range x>=0"),
        ("--attention-backend fastest", "'fastest' is not one of 'fa'"),
        ("--device abacus", "'abacus' is not one of 'tpu'"),
        ("--precompile-bs-paddings 1 two", "'two' is not a valid integer"),
        ("--multi-item-mask-impl causal", "'causal' is not one of"),
        ("--max-multi-item-count 0", "max_items_per_request must be at least 1"),
    ],
)
def test_contradictory_and_meaningless_values_are_refused(
    served: list[ServerConfig], arguments: str, message: str
) -> None:
    done = run("m", *arguments.split())
    assert done.exit_code != 0
    assert message in done.stderr
    assert served == []


def test_variables_and_files_are_checked_as_flags_are(served: list[ServerConfig], tmp_path: Path) -> None:
    (tmp_path / "mis.toml").write_text("page-size = 0\n")
    assert "MIS_PAGE_SIZE: 0 is not in the range" in run("m", MIS_PAGE_SIZE="0").stderr
    assert f"page_size in {tmp_path}/mis.toml: 0 is not" in run("m", "--config", str(tmp_path / "mis.toml")).stderr
    assert run("m", MIS_PRECOMPILE_BS_PADDINGS="1 2 12", MIS_DEVICE="cpu").exit_code == 0


def test_help_has_the_flags_under_a_heading_of_their_own() -> None:
    accepted = run("--help").output.split("Accepted for compatibility:")[1]
    assert all("--" + flag.name.replace("_", "-") in accepted for flag in ACCEPTED)
    assert "--port " not in accepted


def test_what_a_flag_sets_or_contradicts_is_an_option() -> None:
    options = {field.name for config in (EngineConfig, ServerConfig) for field in dataclasses.fields(config)}
    assert options.isdisjoint(flag.name for flag in ACCEPTED)
    assert options >= {name for flag in ACCEPTED for name in (*flag.sets, *flag.contradicts)}
    assert all(isinstance(flag.kind, click.ParamType) for flag in ACCEPTED)


@pytest.mark.full
def test_a_server_started_with_all_flags_scores_accordingly(checkpoint: Path, engine: Engine) -> None:
    flags = shlex.split(PREFILL_EXTEND.replace("151643", "9"))
    further = ["--trust-remote-code", "--page-size", "64", "--random-seed", "3", "--skip-warmup", "--dtype", "float32"]
    with running_server(checkpoint, *flags, *further) as server:
        body = {"query": [1, 2, 9], "items": [[4, 5], [6]], "label_token_ids": [7, 8], "return_layout": True}
        reply = httpx.post(f"{server.base_url}/v1/score", json=body, trust_env=False, timeout=120).json()
        log = server.stderr
    assert reply["layout"]["algorithm"] == "prefill_extend"
    plain = engine.score([1, 2, 9], [[4, 5], [6]], [7, 8])  # no delimiter: neither scored nor refused
    np.testing.assert_allclose(reply["scores"], plain.scores, rtol=1e-5)
    assert "--multi-item-extend-batch-size: A step takes as many items" in log
