"""Which tasks a model has: the one place that knows."""

from mis_core.errors import RequestError

TASKS = ("score", "rerank", "decide", "complete", "chat", "classify")
"""Names of all tasks."""

_LANGUAGE = ("decide", "complete", "chat")


def tasks_of(*, has_chat_template: bool, head_labels: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the tasks that a model has.

    Args:
        has_chat_template: Whether its tokenizer can render messages.
        head_labels: Names of the rows of its classification head; empty for language models.
    """
    return tuple(task for task in TASKS if _why_not(task, has_chat_template, head_labels) is None)


def check_task(task: str, *, has_chat_template: bool, head_labels: tuple[str, ...] = ()) -> None:
    """Refuse a task that a model does not have.

    Raises:
        RequestError: `task_not_supported`; says why, and which option or model helps.
    """
    reason = _why_not(task, has_chat_template, head_labels)
    if reason is not None:
        raise RequestError("task_not_supported", reason, "model")


def _why_not(task: str, has_chat_template: bool, head_labels: tuple[str, ...]) -> str | None:
    if task == "classify" and not head_labels:
        return (
            "This model has no classification head; /v1/classify needs one, such as that of "
            "Qwen3ForSequenceClassification. POST /v1/decisions classifies with a language model."
        )
    if task in _LANGUAGE and head_labels:
        return "This model has a classification head in place of a vocabulary; a language model has this task."
    if task == "chat" and not has_chat_template:
        return "This model has no chat template; start the server with --chat-template, or send texts to /v1/score."
    return None
