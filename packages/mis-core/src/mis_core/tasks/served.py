"""Which tasks a model has: the one place that knows."""

from mis_core.errors import RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.recipes.recognition import rerank_recipe
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.pointer_contract import PointerContract

TASKS = ("score", "rerank", "decide", "complete", "chat", "classify", "token_classify")
"""Names of all tasks."""

_LANGUAGE = ("decide", "complete", "chat")
_TEXT = ("rerank", "decide")


def tasks_of(tokenizer: Tokenizer, limits: Limits) -> tuple[str, ...]:
    """Return the names of the tasks that a model has."""
    return tuple(task for task in TASKS if _why_not(task, tokenizer, limits) is None)


def check_task(task: str, tokenizer: Tokenizer | None, limits: Limits) -> None:
    """Refuse a task that a model does not have.

    Raises:
        RequestError: `task_not_supported`; says why, and which option or model helps.
    """
    reason = _why_not(task, tokenizer, limits)
    if reason is not None:
        raise RequestError("task_not_supported", reason, "model")


def _why_not(task: str, tokenizer: Tokenizer | None, limits: Limits) -> str | None:
    if other := limits.why_not(task):
        return other
    if task == "token_classify" and limits.only_task != task:
        return (
            "This model has no head that labels tokens. /v1/token_classify needs one, such as that of "
            "Qwen3ForTokenClassification."
        )
    if task == "classify" and not limits.head_labels:
        return (
            "This model has no classification head; /v1/classify needs one, such as that of "
            "Qwen3ForSequenceClassification. POST /v1/decisions classifies with a language model."
        )
    if task in _LANGUAGE and limits.head_labels:
        return "This model has a classification head in place of a vocabulary; this task needs a language model."
    if task in _TEXT and tokenizer is None:
        return "This engine has no tokenizer, and this task needs one."
    if task == "chat" and (tokenizer is None or tokenizer.chat_template is None):
        return "This model has no chat template; start the server with --chat-template, or send texts to /v1/score."
    points = tokenizer is not None and isinstance(tokenizer.decision, PointerContract)  # which needs no template
    if task in ("chat", "decide") and tokenizer is not None and tokenizer.chat_template is not None and not points:
        fault = tokenizer.chat_template.fault
        if fault is not None:
            return f"The model's chat template cannot be compiled: {fault} Give another with --chat-template."
    if task == "rerank" and tokenizer is not None:
        try:
            rerank_recipe(tokenizer, limits)
        except RequestError as error:
            return error.message
    return None
