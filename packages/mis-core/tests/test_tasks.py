"""Which tasks a model has, and what a caller is told who asks for another."""

import pytest

from mis_core.errors import RequestError
from mis_core.tasks.served import TASKS, check_task, tasks_of

MODELS = {
    "chat": {"has_chat_template": True},
    "base": {"has_chat_template": False},
    "classifier": {"has_chat_template": True, "head_labels": ("good", "bad")},
}


def test_tasks_follow_from_template_and_head():
    assert tasks_of(**MODELS["chat"]) == ("score", "rerank", "decide", "complete", "chat")
    assert tasks_of(**MODELS["base"]) == ("score", "rerank", "decide", "complete")
    assert tasks_of(**MODELS["classifier"]) == ("score", "rerank", "classify")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_refused_exactly_where_it_is_not_listed(task, model):
    if task in tasks_of(**MODELS[model]):
        check_task(task, **MODELS[model])
        return
    with pytest.raises(RequestError) as caught:
        check_task(task, **MODELS[model])
    assert (caught.value.code, caught.value.param) == ("task_not_supported", "model")


@pytest.mark.parametrize(
    ("task", "model", "help"),
    [
        ("classify", "chat", "/v1/decisions"),
        ("chat", "base", "--chat-template"),
        ("complete", "classifier", "language model"),
    ],
)
def test_the_refusal_says_what_helps(task, model, help):
    with pytest.raises(RequestError, match=help):
        check_task(task, **MODELS[model])
