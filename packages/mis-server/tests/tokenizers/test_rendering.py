"""Strangers' templates: whatever they raise, compute or write is an error of the request, and their process works on.

Templates are rendered in children of real tokenizer processes, as the server does. Nothing here could take the memory
of the machine if the limits failed: the processes have a limit of the system on their address space, too.
"""

import asyncio
import functools
import json
import os
import resource
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from mis_core.errors import RequestError
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_server.tokenizers import pool as tokenizer_pool
from mis_server.tokenizers.process import TokenizerProcess
from mis_server.tokenizers.rendering import TakesLong, WatchedTemplate

pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

MESSAGES = [{"role": "user", "content": "Do cats purr?"}]
MOST_BYTES = 4 * 1024**3  # of address space, which is more than of memory
CHATS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"

# Each computes only while it renders: nothing of it is constant.
SLOW = {
    "power": "{% set x = messages|length + 8 %}{{ x ** (x ** x) }}",
    "loops": (
        "{% set n = 99999 * messages|length %}"
        "{% for a in range(n) %}{% for b in range(n) %}{% set c = b %}{% endfor %}{% endfor %}"
    ),
    "shift": "{% set x = messages|length + 9999999 %}{{ (x ** x) // (x ** (x - 1)) }}",
    "constant power": "{{ 9 ** (9 ** 9) }}",
    # Both lists together stay below the limit of memory: only the time ends this.
    "sum": (
        "{% set long = range(9999)|list * 999 * messages|length %}{% for i in range(9999) %}{{ long|sum }}{% endfor %}"
    ),
}
LARGE = {
    "doubling": (
        "{% set n = namespace(s=messages[0].content) %}"
        "{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    ),
    "format": "{{ '%0999999999d' % messages|length }}",
    "product": "{{ messages[0].content * 999999999 }}",
    "list": "{{ ([0] * (messages|length * 9999999999))|length }}",
    "centre": "{{ messages[0].content|center(9999999999) }}",
    "indent": "{{ (messages[0].content * 9999)|replace('a', messages[0].content * 99999) }}",
}
LONG = {"product": "{{ messages[0].content * 2000000 }}"}
RAISING = {
    "AttributeError": "{{ 'a'|dictsort }}",
    "TypeError": "{{ 1 + 'a' }}",
    "ValueError": "{{ '%q' % 1 }}",
    "KeyError": "{{ '{a}'.format(b=1) }}",
    "IndexError": "{{ '{3}'.format(1) }}",
    "ZeroDivisionError": "{{ 1 % 0 }}",
    "OverflowError": "{{ (10 ** 999) * 1.5 }}",
    "LookupError": "{{ 'a'.encode('no such codec') }}",
    "UnicodeEncodeError": r"{{ '\ud800'.encode() }}",
    "SecurityError": "{{ ''.__class__.__mro__ }}",
    "UndefinedError": "{{ nothing.of.it }}",
    "FilterArgumentError": "{{ [1]|sort(attribute=nothing.x) }}",
    "TemplateError": "{{ raise_exception('no') }}",
    "RecursionError": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "RecursionError of data": (
        "{% set n = namespace(v=[]) %}{% for i in range(9999) %}{% set n.v = [n.v] %}{% endfor %}{{ n.v|tojson }}"
    ),
    "surrogate": r"{{ '\ud800' }}",
    "surrogate reason": r"{{ raise_exception('\ud800') }}",
    "StopIteration": "{{ []|first.x }}",
    "not a text": "{{ raise_exception(messages) }}",
}
BROKEN = {
    "break": "{% break %}",
    "unknown tag": "{% broken",
    "unknown filter": "{{ 'a'|nothing }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "constant": "{{ 9 ** (9 ** 9) }}",
    "assignment": "{% set none = 1 %}",
}


def cases(kinds: dict[str, str], *short: str) -> list[Any]:
    """All of a kind nightly, a few with every commit."""
    return [
        pytest.param(source, id=name, marks=() if name in short else pytest.mark.full) for name, source in kinds.items()
    ]


def render(source: str, messages: list[dict[str, Any]], tokenizer: Tokenizer) -> str:
    template = tokenizer.chat_template
    assert isinstance(template, WatchedTemplate)
    assert template.renderer is not None
    return WatchedTemplate.of(ChatTemplate(source), template.renderer).render(messages)


def render_soon(source: str, tokenizer: Tokenizer) -> str:
    """Render when nearly all of a job's time is over."""
    template = tokenizer.chat_template
    assert isinstance(template, WatchedTemplate)
    assert template.renderer is not None
    template.renderer.allowance.left_s = 0.1
    return render(source, MESSAGES, tokenizer)


def fault(source: str, tokenizer: Tokenizer) -> str | None:
    template = tokenizer.chat_template
    assert isinstance(template, WatchedTemplate)
    assert template.renderer is not None
    return WatchedTemplate.of(ChatTemplate(source), template.renderer).find_fault()


def process_id(tokenizer: Tokenizer) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    return os.getpid()


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a coroutine in the event loop of this module's process."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def process(tokenizer: Tokenizer, run: Run, request: pytest.FixtureRequest) -> Iterator[TokenizerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        paths = [os.environ.get("PYTHONPATH", ""), str(request.config.rootpath)]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        started = run(TokenizerProcess.start(tokenizer.to_json(), renders=True))
    assert started.faults == (None, None, None)
    run(started.run(process_id))
    yield started
    run(started.stop())


@pytest.fixture
def works_on(process: TokenizerProcess, run: Run) -> Iterator[None]:
    """After the test the same process renders what is honest."""
    before = run(process.run(process_id))
    yield
    assert run(process.run(functools.partial(render, CHATS, MESSAGES))) == "<user>Do cats purr?\n"
    assert run(process.run(process_id)) == before


def refused(run: Run, process: TokenizerProcess, source: str) -> str:
    with pytest.raises(RequestError) as caught:
        run(process.run(functools.partial(render, source, MESSAGES)))
    assert (caught.value.code, caught.value.param) == ("invalid_messages", "messages")
    caught.value.message.encode()  # it can be sent
    return caught.value.message


@pytest.mark.parametrize("source", cases(SLOW, "power", "constant power"))
def test_what_computes_without_end_is_given_up_where_others_wait(
    process: TokenizerProcess, run: Run, works_on: None, source: str
) -> None:
    with pytest.raises(TakesLong):
        run(process.run(functools.partial(render, source, MESSAGES), is_brief=True))


@pytest.mark.parametrize("source", cases(SLOW, "loops", "sum"))
def test_what_computes_without_end_is_refused(process: TokenizerProcess, run: Run, works_on: None, source: str) -> None:
    with pytest.raises(RequestError, match="more than 10 s of processor time"):
        run(process.run(functools.partial(render_soon, source)))


@pytest.mark.parametrize("source", cases(LARGE, "doubling", "format"))
def test_what_takes_too_much_memory_is_refused(
    process: TokenizerProcess, run: Run, works_on: None, source: str
) -> None:
    refused(run, process, source)


@pytest.mark.parametrize("source", cases(LONG, *LONG))
def test_what_is_too_long_is_refused(process: TokenizerProcess, run: Run, works_on: None, source: str) -> None:
    assert "characters; at most" in refused(run, process, source)


@pytest.mark.parametrize("source", cases(RAISING, "AttributeError", "RecursionError", "surrogate", "surrogate reason"))
def test_whatever_a_template_raises_is_an_error_of_the_request(
    process: TokenizerProcess, run: Run, works_on: None, source: str
) -> None:
    refused(run, process, source)


@pytest.mark.parametrize("source", cases(BROKEN, "break"))
def test_what_cannot_be_compiled_says_why(process: TokenizerProcess, run: Run, works_on: None, source: str) -> None:
    reason = run(process.run(functools.partial(fault, source)))
    assert reason
    assert len(reason) < 300


def test_what_can_be_compiled_has_no_fault(process: TokenizerProcess, run: Run) -> None:
    assert run(process.run(functools.partial(fault, CHATS))) is None


def test_messages_nested_too_deeply_to_be_sent_are_refused(process: TokenizerProcess, run: Run, works_on: None) -> None:
    deep = functools.partial(render_nested, 100_000)
    with pytest.raises(RequestError, match="recursion"):
        run(process.run(deep))


def render_nested(depth: int, tokenizer: Tokenizer) -> str:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return render(CHATS, [{"role": "user", "content": "a", "nested": value}], tokenizer)


def test_renderings_of_a_job_share_its_time(process: TokenizerProcess, run: Run, works_on: None) -> None:
    with pytest.raises(TakesLong):
        run(process.run(many, is_brief=True))


def many(tokenizer: Tokenizer) -> None:
    source = "{% for a in range(20000) %}{{ a * messages|length }}{% endfor %}"
    for _ in range(1000):
        render(source, MESSAGES, tokenizer)


@pytest.mark.full
def test_an_honest_body_of_64_mib_is_rendered(process: TokenizerProcess, run: Run, works_on: None) -> None:
    text = "words and more \U0001f638" * (64 * 1024**2 // 19 // 64)
    work = functools.partial(render, CHATS, [{"role": "user", "content": text}] * 64)
    assert len(run(process.run(work))) == 64 * (len(text) + len("<user>\n"))


def test_the_pool_knows_the_fault_of_the_models_own_template(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_pool, "_MAX_PROCESSES", 1)
    broken = Tokenizer.from_json(tokenizer.to_json())
    broken.chat_template = ChatTemplate("{% break %}")

    async def main() -> None:
        async with tokenizer_pool.TokenizerPool(broken) as pool:
            await pool.compiled()
            assert pool.tokenizer.chat_template is not None
            assert "outside loop" in (pool.tokenizer.chat_template.fault or "")

    asyncio.run(main())
    assert "chat template cannot be compiled" in caplog.text
    assert json.loads(broken.to_json())["chat_template"]["fault"] is None
