"""The routes of the application, each with a body: tables for tests that walk them."""

from typing import Any, cast

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

Body = dict[str, Any]

TEXT, LABEL = "rain in the plains", "yes"  # each is tried apart; all other texts are words of the contract
PREDICATE = {"type": "predicate", "name": "n", "instructions": TEXT}
CHOICE = {"type": "choice", "instructions": TEXT, "choices": [{"value": TEXT, "description": TEXT}, {"value": "sun"}]}
LEVELS = {"type": "score", "instructions": TEXT, "levels": [{"label": TEXT, "description": TEXT}, {"label": "cross"}]}

SCORE: Body = {"query": TEXT, "items": [TEXT, TEXT], "labels": [LABEL, TEXT]}
RERANK: Body = {"query": TEXT, "documents": [TEXT, {"text": TEXT}], "instruction": TEXT}
DECISION: Body = {"input": TEXT, "questions": [PREDICATE, CHOICE, LEVELS]}
SYSTEM_ONE: Body = {
    "state": {"text": TEXT},
    "questions": {
        "n": {"type": "noul", "instructions": TEXT, "criteria": {"true": TEXT}},
        "c": {"type": "choice", "instructions": TEXT, "criteria": {TEXT: TEXT, "sun": None}},
        "s": {"type": "score", "criteria": [TEXT, "cross"]},
    },
}
SYSTEM_ONE_BATCH: Body = {"states": [{"text": TEXT}, [TEXT], TEXT], "questions": SYSTEM_ONE["questions"]}
COMPLETION: Body = {"prompt": [TEXT, TEXT], "max_tokens": 2}
CHAT: Body = {"messages": [{"role": "user", "content": TEXT}], "labels": [LABEL, "no"], "max_tokens": 2}
CLASSIFY: Body = {"input": [TEXT, TEXT]}

BODIES: dict[str, Body] = {
    "/v1/score": SCORE,
    "/score": SCORE,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/decisions": DECISION,
    "/decisions": DECISION,
    "/v1/systemone": SYSTEM_ONE,
    "/api/v1/systemone": SYSTEM_ONE,
    "/api/alpha/decisions": SYSTEM_ONE,
    "/v1/systemone/batch": SYSTEM_ONE_BATCH,
    "/v1/completions": COMPLETION,
    "/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/classify": CLASSIFY,
    "/classify": CLASSIFY,
    "/v1/token_classify": CLASSIFY,
    "/token_classify": CLASSIFY,
}
"""A body for each route that computes something of texts."""

SAME = {
    "/v2/rerank": "/v1/rerank",
    "/get_model_info": "/model_info",
    "/api/v1/systemone": "/v1/systemone",
    "/api/alpha/decisions": "/v1/systemone",
    **{
        path.removeprefix("/v1"): path
        for path in BODIES
        if path.startswith("/v1/") and path.removeprefix("/v1") in BODIES
    },
}
"""Other paths of a route."""

SHOWING = {"/tokenize": {"prompt": TEXT}, "/detokenize": {"tokens": [5]}}
"""Routes that show what the tokenizer does, whatever model it is for."""

WITHOUT_TEXT = {"/flush_cache", "/start_profile", "/stop_profile"}


def paths(app: FastAPI, method: str) -> set[str]:
    """The paths of all routes, those too that are not in the OpenAPI document."""
    found: set[str] = set()
    for context in iter_route_contexts(app.routes):
        if method in (getattr(context, "methods", None) or ()):
            found.add(cast(Any, context).path)
    return found


def serves(path: str) -> dict[str, Any]:
    """What is served at a path: a model with a classification head where that is needed."""
    if not path.endswith("classify"):
        return {}
    only = {"only_task": "token_classify"} if path.endswith("token_classify") else {}
    return {"head_labels": ("no", "yes"), **only}
