"""Which tasks a model has, and what a caller is told who asks for another."""

from dataclasses import replace

import pytest

from mis_core.errors import RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.served import TASKS, check_task, tasks_of
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_testing.tokenizer import build_tokenizer

LIMITS = Limits(context_length=64, vocab_size=1024)
CLASSIFIER = replace(LIMITS, head_labels=("good", "bad"))
MODELS = {
    "chat": (ChatTemplate("{{ messages }}"), LIMITS),
    "base": (None, LIMITS),
    "qwen3": (None, replace(LIMITS, architecture="Qwen3ForCausalLM")),
    "classifier": (ChatTemplate("{{ messages }}"), CLASSIFIER),
    "of tokens": (None, replace(CLASSIFIER, only_task="token_classify")),
    "many classes": (None, replace(LIMITS, head_labels=("good", "bad", "other"))),
}


def model(name: str) -> tuple[Tokenizer, Limits]:
    template, limits = MODELS[name]
    return Tokenizer(build_tokenizer("qwen3"), template), limits


def test_tasks_follow_from_template_and_head():
    assert tasks_of(*model("chat")) == ("score", "rerank", "decide", "complete", "chat")
    assert tasks_of(*model("base")) == ("score", "decide", "complete")
    assert tasks_of(*model("qwen3")) == ("score", "rerank", "decide", "complete")
    assert tasks_of(*model("classifier")) == ("score", "rerank", "classify")
    assert tasks_of(*model("many classes")) == ("score", "classify")
    assert tasks_of(*model("of tokens")) == ("token_classify",)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_refused_exactly_where_it_is_not_listed(task, name):
    if task in tasks_of(*model(name)):
        check_task(task, *model(name))
        return
    with pytest.raises(RequestError) as caught:
        check_task(task, *model(name))
    assert (caught.value.code, caught.value.param) == ("task_not_supported", "model")


@pytest.mark.parametrize(
    ("task", "name", "help"),
    [
        ("classify", "chat", "/v1/decisions"),
        ("classify", "of tokens", "/v1/token_classify"),
        ("token_classify", "classifier", "Qwen3ForTokenClassification"),
        ("chat", "base", "--chat-template"),
        ("complete", "classifier", "language model"),
        ("rerank", "base", "--rerank-template"),
        ("rerank", "many classes", "one, or two"),
    ],
)
def test_the_refusal_says_what_helps(task, name, help):
    with pytest.raises(RequestError, match=help):
        check_task(task, *model(name))
