"""Kinds of servers: ours, SGLang, vLLM, llama.cpp's, and completions as OpenAI has them."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from mis_bench.targets.asking import (
    DECISIONS,
    LOGLIKELIHOODS,
    RERANK,
    SCORE,
    SYSTEM_ONE,
    Asking,
    Json,
    Tasks,
    completed,
    drawing,
    in_order,
    ranked_list,
    reading,
)
from mis_bench.targets.http import Server, ServerOptions
from mis_bench.targets.target import CallFailed, Reply, TargetUnavailable, fitting, scores_of
from mis_bench.workload import Workload
from mis_core.errors import ModelError
from mis_core.tokenization import Tokenizer

_VLLM_WITH_SALT = (0, 33)
_COMPLETIONS_ONLY = "it is asked for completions only."
_NO_SUCH_ROUTE = "it has no such route."
_SYSTEM_ONE_ONLY = "it is asked for System One only."


def _without_documents(workload: Workload) -> list[Json]:
    """Return one body that asks for no documents in the reply, which are there by default."""
    return [workload.request | {"return_documents": False}]


_SGLANG: Tasks = {
    "score": SCORE,
    "rerank": Asking("/v1/rerank", _without_documents, ranked_list, list),
    "decisions": "its /v1/decisions takes another body than OpenAI's.",
    "systemone": _NO_SUCH_ROUTE,
    "loglikelihoods": Asking("/v1/completions", drawing, completed),
}


class SGLang(Server):
    """SGLang: scores by `/v1/score`. Without `--enable-mis` it computes item by item behind its prefix cache.

    It refuses to flush its cache while requests are under way.
    """

    BACKEND: ClassVar[str] = "sglang"
    INFO: ClassVar[str] = "/server_info"
    forgetting = "flush"
    tasks = _SGLANG


_MIS: Tasks = {
    "score": SCORE,
    "rerank": RERANK,
    "decisions": DECISIONS,
    "systemone": SYSTEM_ONE,
    "loglikelihoods": LOGLIKELIHOODS,
}


class MisOptions(ServerOptions):
    """Options of `mis`; `admin_key` is for `mis-bench profile`, if the server has one."""

    admin_key: str | None = None


class Mis(SGLang):
    """`mis-server`, which speaks as SGLang does and more."""

    BACKEND: ClassVar[str] = "mis-server"
    OPTIONS: ClassVar[type[ServerOptions]] = MisOptions
    forgetting = "salt"
    tasks = _MIS

    async def details(self) -> Json:
        """`GET /server_info`."""
        info = await super().details()
        return {"version": info.get("version")} | info.get("settings", {}) | info.get("engine", {})

    async def counts(self) -> dict[str, float]:
        """The engine's statistics, too."""
        counts = await super().counts()
        with contextlib.suppress(CallFailed):
            counts |= (await self.get(self.INFO)).get("statistics", {})
        return counts


def _by_label(workload: Workload) -> list[Json]:
    """Return one body, or one for each label with that label in front."""
    labels = workload.label_token_ids.tolist()
    fields = {"apply_softmax": workload.apply_softmax, "add_special_tokens": False}
    orders = [[label, *labels[:index], *labels[index + 1 :]] for index, label in enumerate(labels)]
    asked = orders[:1] if _needs_one_call(workload) else orders
    return [workload.request | fields | {"label_token_ids": order} for order in asked]


def _first_labels(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read the first label's score of each answer, its items in any order."""
    with reading("`data` with an index and a score each"):
        found = [{int(each["index"]): each["score"] for each in answer["data"]} for answer in answers]
    columns = np.array([in_order(scores, workload.num_items) for scores in found], np.float64)
    if _needs_one_call(workload):
        columns = np.stack([columns[0], 1 - columns[0]])
    return Reply(fitting(columns.T, workload))


_VLLM: Tasks = {
    "score": Asking("/generative_scoring", _by_label, _first_labels),
    "rerank": RERANK,
    "decisions": DECISIONS,
    "systemone": SYSTEM_ONE,
    "loglikelihoods": LOGLIKELIHOODS,
}


class VLLM(Server):
    """vLLM: scores by `/generative_scoring`, a rerank where it serves a reranker.

    It answers with the first label's score only. Two labels with a softmax need one call, since they sum to 1;
    otherwise each label takes a call of its own, one after another, with that label in front.
    """

    BACKEND: ClassVar[str] = "vllm"
    tasks = _VLLM

    async def details(self) -> Json:
        """Its version: before 0.33 the server ignores the salt and keeps the query."""
        info = await super().details()
        found = re.match(r"(\d+)\.(\d+)", str(info.get("version")))
        self.forgetting = "salt" if found and tuple(map(int, found.groups())) >= _VLLM_WITH_SALT else None
        return info


class OpenAIOptions(ServerOptions):
    """Options of `openai`."""

    logprobs: PositiveInt = 5  # tokens to ask for: the most that OpenAI allows; other servers allow more
    token_ids: bool = False  # servers of vLLM's kind name tokens by id; else by text, from a directory's tokenizer


class OpenAI(Server):
    """`/v1/completions`: scores by one token behind every item, with the most probable tokens' log-probabilities.

    It knows nothing of labels: they must be among the most probable tokens.
    """

    BACKEND: ClassVar[str] = "openai"
    OPTIONS: ClassVar[type[ServerOptions]] = OpenAIOptions

    def __init__(self, spec: str, given: Mapping[str, str], directory: Path | None) -> None:
        super().__init__(spec, given, directory)
        assert isinstance(self.options, OpenAIOptions)
        self._fields: Json = {"max_tokens": 1, "temperature": 0, "logprobs": self.options.logprobs}
        self._tokenizer: Tokenizer | None = None
        self.tasks = {
            "score": Asking("/v1/completions", self._bodies, self._reply),
            "rerank": _COMPLETIONS_ONLY,
            "decisions": _COMPLETIONS_ONLY,
            "systemone": _COMPLETIONS_ONLY,
            "loglikelihoods": Asking("/v1/completions", drawing, completed),
        }
        if self.options.token_ids:
            self._fields["return_tokens_as_token_ids"] = True
            return
        if directory is None:
            raise TargetUnavailable("The target openai needs --model for its tokenizer, or token_ids=true.")
        try:
            self._tokenizer = Tokenizer.from_pretrained(directory)
        except ModelError as error:
            raise TargetUnavailable(error.message) from None

    def _bodies(self, workload: Workload) -> list[Json]:
        """One request, a prompt of query and item for each."""
        request = workload.request
        return [{"prompt": [request["query"] + item for item in request["items"]], **self._fields}]

    def _reply(self, answers: Sequence[Json], workload: Workload) -> Reply:
        """Log-probabilities of the labels, found by name, as probabilities or as a softmax over the labels."""
        with reading("`top_logprobs` for each choice"):
            found = {int(each["index"]): each["logprobs"]["top_logprobs"][0] for each in answers[0]["choices"]}
            tops = [dict[str, float](top) for top in in_order(found, workload.num_items)]
        names = [self._name(label) for label in workload.label_token_ids.tolist()]
        for index, top in enumerate(tops):
            if missing := set(names) - set(top):
                raise CallFailed(
                    "missing_scores",
                    f"The label {min(missing)!r} is not among the {len(top)} most probable tokens after item {index}; "
                    "this target cannot tell its probability.",
                )
        logprobs = fitting([[top[name] for name in names] for top in tops], workload)
        return Reply(scores_of(logprobs, workload))

    def _name(self, label: int) -> str:
        return f"token_id:{label}" if self._tokenizer is None else self._tokenizer.decode([label])


_LLAMA_SERVER: Tasks = {
    "score": "it tells the most probable tokens only; the target llama.cpp scores.",
    "rerank": RERANK,
    "decisions": _NO_SUCH_ROUTE,
    "systemone": SYSTEM_ONE,
    "loglikelihoods": "it tells no log-probabilities of a prompt's own tokens.",
}


class LlamaServer(Server):
    """llama.cpp's `llama-server`, started with `--reranking`."""

    BACKEND: ClassVar[str] = "llama-server"
    INFO: ClassVar[str] = "/props"
    tasks = _LLAMA_SERVER

    async def details(self) -> Json:
        """Its build."""
        return {"version": (await super().details()).get("build_info")}


_SYSTEM_ONE_SERVER: Tasks = {
    "score": _SYSTEM_ONE_ONLY,
    "rerank": _SYSTEM_ONE_ONLY,
    "decisions": _SYSTEM_ONE_ONLY,
    "systemone": SYSTEM_ONE,
    "loglikelihoods": _SYSTEM_ONE_ONLY,
}


class SystemOneServerOptions(ServerOptions):
    """Options of `systemone`; `model` is taken on trust, since some list only models that they have been asked for."""

    stateless: bool = False  # whether it keeps nothing from one request to the next, as `transformers serve`


class SystemOneServer(Server):
    """Any server of `POST /v1/systemone`, such as `transformers serve`."""

    BACKEND: ClassVar[str] = "systemone"
    INFO: ClassVar[str] = "/openapi.json"
    OPTIONS: ClassVar[type[ServerOptions]] = SystemOneServerOptions
    tasks = _SYSTEM_ONE_SERVER

    def __init__(self, spec: str, given: Mapping[str, str], directory: Path | None) -> None:
        super().__init__(spec, given, directory)
        assert isinstance(self.options, SystemOneServerOptions)
        self.forgetting = "needless" if self.options.stateless else None

    async def details(self) -> Json:
        """The title that it gives itself."""
        return {"title": ((await super().details()).get("info") or {}).get("title")}

    async def _model(self) -> str:
        return self.options.model or await super()._model()


KINDS: Mapping[str, type[Server]] = {
    "mis": Mis, "sglang": SGLang, "vllm": VLLM, "openai": OpenAI, "llama-server": LlamaServer,
    "systemone": SystemOneServer,
}  # fmt: skip
"""By the name of a target on the command line."""


def _needs_one_call(workload: Workload) -> bool:
    return workload.apply_softmax and len(workload.label_token_ids) == 2
