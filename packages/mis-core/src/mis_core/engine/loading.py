"""From options to a model on this process's devices, its steps compiled."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from mis_core.calibration import Calibrations
from mis_core.calibration.loading import checked, read_calibrations
from mis_core.checkpoints import Checkpoint, ModelPart, open_model
from mis_core.config import EngineConfig
from mis_core.engine.compilations import keep_compiled
from mis_core.errors import ConfigError, ModelError
from mis_core.hub import resolve
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.decoder import Decoder
from mis_core.models.parallel import make_mesh, spread_heads
from mis_core.models.weights import load_decoder
from mis_core.requests import Layout
from mis_core.runner.buckets import step_shape, token_buckets
from mis_core.runner.dense import DenseMemory
from mis_core.runner.memory import cache_pages, longest_whole_item, state_slots, token_budget
from mis_core.runner.runner import Runner
from mis_core.scheduler.plan import PAGE_SIZE, StepShape
from mis_core.scheduler.scheduler import Scheduler
from mis_core.tasks.limits import Limits
from mis_core.tasks.recipes.recognition import describe_rerank
from mis_core.tokenization import Tokenizer
from mis_kernels.backends import explain, fastest_dtype

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """What an engine is made of.

    Attributes:
        config: The options; `dtype` is the type that steps compute in, never `auto`.
        directory: The checkpoint: a directory, or a GGUF file.
        created: When the checkpoint's settings were written, in seconds since 1970.
        parts: What the model is made of.
        limits: What one request may ask for.
        read_tokenizer: Returns the tokenizer, which is read at the first call. Thread-safe.
        calibrations: What results are calibrated by; None: nothing.
        dense_memory: Whether a request's dense masks fit.
        runner: The weights, the KV cache and the compiled steps.
        scheduler: Plans the runner's steps.
        summary: What was loaded, for people.
    """

    config: EngineConfig
    directory: Path
    created: int
    parts: tuple[ModelPart, ...]
    limits: Limits
    read_tokenizer: Callable[[], Tokenizer]
    calibrations: Calibrations | None
    dense_memory: DenseMemory
    runner: Runner
    scheduler: Scheduler
    summary: dict[str, str | int | float]


def load(config: EngineConfig, progress: bool) -> LoadedModel:
    """Load a model and compile its steps; arguments and errors are those of `Engine`."""
    keep_compiled(config.compilation_cache_dir)
    local = resolve(config)
    calibrations = read_calibrations(local)
    directory = Path(local.model)
    checkpoint = open_model(local)
    created = int(checkpoint.settings_path.stat().st_mtime)
    model = read_model_config(
        checkpoint,
        ignore_unknown=config.ignore_unknown_settings,
        with_decision_head=config.decision_prompt is None,
    )
    parts = checkpoint.parts(with_head=model.decision is not None)
    dtype, reason = fastest_dtype() if config.dtype == "auto" else (config.dtype, "as asked for")
    config = dataclasses.replace(config, dtype=dtype)
    _check_fits(config, model)
    mesh, spread = make_mesh(config.dp_size, config.tp_size), spread_heads(model, config.tp_size)
    logger.info("Loading %s as %s (%s), quantization %s.", directory.name, dtype, reason, config.quantization)
    decoder = load_decoder(checkpoint, model, jnp.dtype(dtype), mesh, progress, config.quantization)
    logger.info("Steps are computed by %s.", explain(decoder.backend.heads, dtype))
    slots = state_slots(config, model)
    shape, pages, context_length = _step_shape(config, spread, mesh, decoder, slots)
    dense_memory = DenseMemory(shape, decoder.backend)
    if config.mask_impl == "dense":
        dense_memory.check_longest()
    runner = Runner(decoder, mesh, shape, pages, slots)
    limits = _limits(config, model, checkpoint, context_length, identified=calibrations is not None)
    if not config.skip_warmup:
        _warm_up(runner, config, progress)
    read_tokenizer = _tokenizer_reader(local, limits)
    if calibrations is not None:
        calibrations = checked(calibrations, local, parts, dtype, read_tokenizer().digest)
    return LoadedModel(
        config=config,
        directory=directory,
        created=created,
        parts=parts,
        limits=limits,
        read_tokenizer=read_tokenizer,
        calibrations=calibrations,
        dense_memory=dense_memory,
        runner=runner,
        scheduler=_scheduler(config, runner),
        summary=_summary(config, runner, context_length),
    )


def _check_fits(config: EngineConfig, model: ModelConfig) -> None:
    """Refuse options that are too large for the model."""
    if config.context_length is not None and config.context_length > model.longest:
        raise ModelError(f"context_length {config.context_length} exceeds the model's {model.longest} positions.")
    delimiter = config.multi_item_scoring_delimiter
    if delimiter is not None and delimiter >= model.vocab_size:
        raise ConfigError(
            f"multi_item_scoring_delimiter must be a token of the model, below {model.vocab_size}, not {delimiter}.",
            "multi_item_scoring_delimiter",
        )


def _step_shape(
    config: EngineConfig, spread: ModelConfig, mesh: Mesh, decoder: Decoder, slots: int
) -> tuple[StepShape, int, int]:
    """Return the room of a step, the pages of the cache on each device along `data`, and the context length."""
    budget = token_budget(config, spread, mesh)
    pages, context_length = cache_pages(config, spread, mesh, budget, slots)
    context_pages = -(-context_length // PAGE_SIZE)
    shape = step_shape(
        decoder.backend,
        budget,
        pages_per_context=context_pages,
        shards=config.dp_size,
        longest_item=longest_whole_item(config),
    )
    logger.info("Items of up to %d tokens are computed in one step, longer ones in pages.", shape.longest_item)
    return shape, pages, context_length


def _limits(
    config: EngineConfig, model: ModelConfig, checkpoint: Checkpoint, context_length: int, *, identified: bool
) -> Limits:
    return Limits(
        context_length=context_length,
        vocab_size=model.vocab_size,
        delimiter=config.multi_item_scoring_delimiter,
        layouts=True,  # Python callers may always choose the layout
        head_labels=model.head_labels,
        head_activation=model.head_activation,
        architecture=model.architecture,
        only_task=model.only_task,
        signs=checkpoint.signs(),
        choice_order=config.choice_order,
        rerank_recipe=config.rerank_recipe,
        identified=identified,
    )


def _scheduler(config: EngineConfig, runner: Runner) -> Scheduler:
    layout = Layout(config.scoring_algorithm, config.mask_impl, config.multi_item_scoring_chunk_size)
    caches, most = not config.disable_radix_cache, config.max_running_requests
    return Scheduler(runner.shape, runner.pages, layout, max_running=most, prefix_cache=caches, states=runner.slots)


def _tokenizer_reader(local: EngineConfig, limits: Limits) -> Callable[[], Tokenizer]:
    reading = threading.Lock()  # concurrent first uses would race on importing transformers
    found: list[Tokenizer] = []

    def read() -> Tokenizer:
        with reading:
            if not found:
                found.append(Tokenizer.of(local).compiled())
                logger.info("Rerank: %s", describe_rerank(found[0], limits))
            return found[0]

    return read


def _warm_up(runner: Runner, config: EngineConfig, progress: bool) -> None:
    logger.info("Compiling the steps of %d shapes.", len(token_buckets(runner.shape.tokens)))
    began = time.perf_counter()
    seconds = runner.warm_up(dense_mask=config.mask_impl == "dense", progress=progress)
    logger.info("Compiled in %.1f s: %s", time.perf_counter() - began, seconds)


def _summary(config: EngineConfig, runner: Runner, context_length: int) -> dict[str, str | int | float]:
    tokens = runner.shape.tokens
    return {
        "dtype": config.dtype,
        "quantization": config.quantization,
        "devices": f"{config.tp_size * config.dp_size} x {jax.devices()[0].device_kind}",
        "tp_size": config.tp_size,
        "dp_size": config.dp_size,
        "context_length": context_length,
        "cache_tokens": runner.pages * PAGE_SIZE * config.dp_size,
        **({"cache_states": runner.slots * config.dp_size} if runner.slots else {}),
        "step_tokens": tokens,
        "longest_item": runner.shape.longest_item,
        "buckets": " ".join(map(str, token_buckets(tokens))),
    }
