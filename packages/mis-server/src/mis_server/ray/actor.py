"""An engine process within an actor of Ray Data."""

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from mis_core.config import NO_CALIBRATION, EngineConfig
from mis_server.offline.asked import OfflineTask
from mis_server.offline.rows import InputRow
from mis_server.offline.scorer import Scorer, running_scorer
from mis_server.offline.window import in_order


class Host:
    """Holds an engine process, which is started when rows arrive, restarted when it ends, and ends with the actor."""

    def __init__(self, asked: OfflineTask, config: EngineConfig) -> None:
        self._asked = asked
        self._config = config
        self._starting = asyncio.Lock()
        self._running = contextlib.AsyncExitStack()
        self._scorer: Scorer | None = None

    async def scorer(self) -> Scorer:
        """Return what scores, started if it is not yet; raises as `running_scorer`."""
        async with self._starting:
            if self._scorer is None:
                self._scorer = await self._running.enter_async_context(running_scorer(self._asked, self._config))
            return self._scorer

    async def score(self, rows: list[InputRow]) -> None:
        """Give every row its answer or its error, through the window of `mis-server score`.

        Raises:
            ConfigError, ModelError, EngineUnavailable: as `running_scorer`, and as `Scorer.score`.
        """
        scorer = await self.scorer()
        async with contextlib.aclosing(in_order(rows, scorer.score, self._asked)) as runs:
            async for _ in runs:
                pass


_PATHS = (
    "model", "tokenizer_path", "chat_template", "rerank_template", "decision_prompt", "decision_head",
    "merge_lora", "calibration", "compilation_cache_dir", "download_dir",
)  # fmt: skip


def for_actors(config: EngineConfig) -> EngineConfig:
    """Return a config whose paths are absolute: actors have another working directory."""
    given = {name: getattr(config, name) for name in _PATHS}
    if config.rerank_recipe is not None:  # a name, even where a file has it, too
        del given["rerank_template"]
    if config.decision_file is None:
        del given["decision_prompt"]
    if config.calibration == NO_CALIBRATION:
        del given["calibration"]
    there = {name: Path(path) for name, path in given.items() if path is not None and Path(path).exists()}
    absolute: dict[str, Any] = {name: str(path.absolute()) for name, path in there.items()}
    return dataclasses.replace(config, **absolute)
