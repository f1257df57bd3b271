"""The playground in a browser, against a real server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Route, expect

from mis_testing.server import RunningServer, freeze
from playground_pages import KEY, Watched, address, ask, enter_key, send

Open = Callable[..., Watched]

EVIL = "<img src=x onerror=\"document.title='caught'\">"
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
EXAMPLE_ITEMS = ["A warm and funny story.", "The plot made no sense at all.", "I have never been so bored."]


def percent(probability: float) -> str:
    """As the page writes probabilities that are not tiny."""
    return f"{100 * probability:.1f} %"


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_items_are_scored_and_shown_with_the_best_first(
    server: RunningServer, open_page: Open, request: pytest.FixtureRequest, width: int, scheme: str
) -> None:
    watched = open_page(address(server), width=width, color_scheme=scheme)
    page = watched.page
    ids = [ask(server, "tokenize", {"prompt": text})["tokens"] for text in (" positive", " negative")]
    chips = [" ".join(map(str, ["␣positive", *ids[0]])), " ".join(map(str, ["␣negative", *ids[1]]))]
    expect(page.locator("#label-tokens li")).to_have_text(chips)
    with page.expect_response("**/v1/score") as answered:
        send(page)
    sent, reply = answered.value.request.post_data_json, answered.value.json()
    again = ask(server, "v1/score", sent)
    assert again["scores"] == reply["scores"]
    best = sorted(range(len(sent["items"])), key=lambda item: -reply["scores"][item][0])
    expect(page.locator(".outcomes .title")).to_have_text([sent["items"][item].split("\n")[0] for item in best])
    first = page.locator(".outcomes li").first
    expect(first.locator(".value")).to_have_text([percent(score) for score in reply["scores"][best[0]]])
    tokens = reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    expect(page.locator(".totals strong")).to_contain_text([str(tokens[0]), str(tokens[1]), "ms"])
    expect(page.locator(".legend li")).to_contain_text(["tokenize", "queue", "plan", "device", "finish"])
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 127")
    assert light == (scheme == "light")
    assert watched.overflow <= 0
    origins = {"://".join((urlsplit(url).scheme, urlsplit(url).netloc)) for url in watched.asked}
    assert origins == {server.base_url}
    assert watched.complaints == []


def test_what_the_tests_exclude_would_be_noticed(server: RunningServer, open_page: Open) -> None:
    watched = open_page(address(server))
    watched.page.evaluate("() => fetch('http://127.0.0.1:9/').catch(() => null)")
    watched.page.evaluate("() => { document.querySelector('h1').style.minWidth = '3000px' }")
    assert any("Content Security Policy" in complaint for complaint in watched.complaints), watched.complaints
    assert watched.overflow > 0
    markup = "() => { try { document.body.innerHTML = 'x' } catch (error) { return error.name } }"
    assert watched.page.evaluate(markup) == "TypeError"


def test_documents_are_ranked(server: RunningServer, open_page: Open) -> None:
    items = "\n".join(EXAMPLE_ITEMS)
    page = open_page(address(server, task="rerank", query="Was it funny?", items=items)).page
    send(page)
    ranked = ask(server, "v1/rerank", {"query": "Was it funny?", "documents": EXAMPLE_ITEMS})["results"]
    expect(page.locator(".outcomes .title")).to_have_text([EXAMPLE_ITEMS[each["index"]] for each in ranked])


@pytest.mark.parametrize(("width", "scheme"), SIZES[1:3])
def test_a_chat_is_streamed_and_goes_on(server: RunningServer, open_page: Open, width: int, scheme: str) -> None:
    state = {"task": "chat", "message": "Do cats purr?", "max_tokens": "12", "temperature": "0"}
    watched = open_page(address(server, **state), width=width, color_scheme=scheme)
    page = watched.page
    send(page)
    said = [{"role": "user", "content": "Do cats purr?"}]
    body = {"max_tokens": 12, "temperature": 0, "logprobs": True}
    first = ask(server, "v1/chat/completions", {"messages": said, **body})
    answer = first["choices"][0]["message"]["content"]
    texts = page.locator(".chat .text")
    assert texts.all_text_contents() == ["Do cats purr?", answer]
    shown = page.locator(".chat li").last.locator("span")
    assert shown.first.get_attribute("title")
    expect(page.locator(".totals")).to_contain_text(f"{first['usage']['completion_tokens']} written")
    page.fill("[name=message]", "Why?")
    send(page)
    said += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Why?"}]
    second = ask(server, "v1/chat/completions", {"messages": said, **body})["choices"][0]["message"]["content"]
    assert texts.all_text_contents() == ["Do cats purr?", answer, "Why?", second]
    assert watched.overflow <= 0
    assert watched.complaints == []
    page.click("#forget")
    assert texts.all_text_contents() == []
    send(page)
    expect(texts).to_have_count(2)


def test_a_chat_can_be_stopped_and_tells_what_goes_wrong(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server, task="chat", message="Do cats purr?", max_tokens="150")).page
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))  # so that nothing arrives
    page.click("#send")
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped.")
    held[0].abort()
    page.unroute("**/v1/chat/completions")
    page.fill("[name=max_tokens]", "100000")
    page.click("#send")
    expect(page.locator("#error")).to_contain_text("context_length_exceeded")
    page.fill("[name=max_tokens]", "3")
    send(page)
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator(".chat .text")).to_have_count(2)


def test_questions_of_every_kind_are_answered(server: RunningServer, open_page: Open) -> None:
    questions = "It is late.\nWhat is it? | a parcel | a letter\nHow angry? < calm < cross"
    watched = open_page(address(server, task="decide", input="Where is my parcel?", questions=questions), width=390)
    page = watched.page
    with page.expect_response("**/v1/decisions") as answered:
        send(page)
    predicate, choice, score = answered.value.json()["answers"]
    expect(page.locator(".outcomes .title")).to_have_text(["It is late.", "What is it?", "How angry?"])
    expect(page.locator(".outcomes .name")).to_have_text(["true", "a parcel", "a letter", "calm", "cross"])
    probabilities = [predicate["probability"]]
    probabilities += [each["probability"] for each in choice["probabilities"] + score["probabilities"]]
    expect(page.locator(".outcomes .value")).to_have_text(list(map(percent, probabilities)))
    expect(page.locator(".outcomes .facts").last).to_contain_text(f"expected level {score['score']:.2f} · label mass")
    expect(page.locator(".outcomes .title").first).to_be_in_viewport()  # below the form, on a phone
    assert watched.overflow <= 0
    assert watched.complaints == []


def test_system_one_answers_the_same_questions(server: RunningServer, open_page: Open) -> None:
    questions = "Is it late?\nWhat is it? | a parcel | a letter\nHow angry? < calm < cross"
    state = {"input": "Where is my parcel?", "questions": questions, "systemone.x_abstain_below": "1"}
    watched = open_page(address(server, task="systemone", **state), width=390)
    page = watched.page
    with page.expect_response("**/v1/systemone") as answered:
        send(page)
    noul, choice, score = answered.value.json()["answers"].values()
    expect(page.locator(".outcomes .title")).to_have_text(["Is it late?", "What is it?", "How angry?"])
    expect(page.locator(".outcomes .name")).to_have_text(["yes", "a parcel", "a letter", "calm", "cross"])
    probabilities = [noul["noul"], *choice["probabilities"].values(), *score["probabilities"].values()]
    expect(page.locator(".outcomes .value")).to_have_text(list(map(percent, probabilities)))
    said = f"expected level {score['score']:.2f} · confidence {score['confidence']:.2f} · abstained"
    expect(page.locator(".outcomes .facts").last).to_contain_text(said)
    assert watched.overflow <= 0
    assert watched.complaints == []
    page.fill("[name=questions]", "Which? | alone")
    send(page)
    expect(page.locator("#error")).to_contain_text('422 invalid_questions: questions["q1"].criteria has 1 members')


def test_everything_can_be_done_with_the_keyboard(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server, query="word " * 400)).page
    keyboard = page.keyboard

    def tab_to(selector: str) -> None:
        for _ in range(40):
            keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                break
        ring = "() => getComputedStyle(document.activeElement)"
        assert page.evaluate("selector => document.activeElement.matches(selector)", selector), selector
        visible = page.evaluate(f"({ring})().outlineStyle !== 'none' || ({ring})().boxShadow !== 'none'")
        assert visible or "file" in selector, selector

    tab_to("[role=tab]")
    keyboard.press("ArrowLeft")
    expect(page.locator("#tab-chat")).to_have_attribute("aria-selected", "true")
    keyboard.press("ArrowLeft")
    expect(page.locator("#tab-systemone")).to_have_attribute("aria-selected", "true")
    keyboard.press("End")
    keyboard.press("ArrowRight")
    expect(page.locator("#tab-score")).to_be_focused()
    tab_to("[name=items]")
    keyboard.press("Control+A")
    keyboard.type("One\nTwo\nThree")
    keyboard.press("Control+Enter")
    expect(page.locator(".outcomes li")).to_have_count(3, timeout=60_000)
    tab_to("#code summary")
    keyboard.press("Enter")
    expect(page.locator("#snippets pre").first).to_be_visible()
    tab_to(".placement")
    keyboard.press("End")
    expect(page.locator(".told")).to_contain_text("Item 3")
    tab_to(".player input")
    keyboard.press("Home")
    expect(page.locator(".track.is-later").first).to_be_visible()
    tab_to("#compare")
    tab_to("#open")


def test_the_address_brings_a_request_back(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server)).page
    page.fill("[name=query]", "Ünïcode & 100 %\n#?")
    page.fill("[name=suffix]", "\n\nAnswer:")
    page.uncheck("[name=softmax]")
    page.click("#tab-rerank")
    other = open_page(page.url).page
    expect(other.locator("#tab-rerank")).to_have_attribute("aria-selected", "true")
    other.click("#tab-score")
    expect(other.locator("[name=query]")).to_have_value("Ünïcode & 100 %\n#?")
    expect(other.locator("[name=suffix]")).to_have_value("\n\nAnswer:")
    expect(other.locator("[name=softmax]")).not_to_be_checked()
    expect(other.locator("[name=items]")).to_have_value(open_page(address(server)).page.input_value("[name=items]"))


@pytest.mark.parametrize("task", ["score", "rerank", "decide"])
def test_markup_is_text(server: RunningServer, open_page: Open, task: str) -> None:
    state = {"task": task, "query": EVIL, "items": EVIL, "labels": f" {EVIL}\n yes", "suffix": "", "input": EVIL}
    watched = open_page(address(server, **state, questions=f"{EVIL.replace('<', '')}\n{EVIL[1:]} | {EVIL} | b"))
    page = watched.page
    send(page)
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator(".outcomes")).to_contain_text("onerror=")
    assert page.locator("#reply img, form img").count() == 0
    assert page.title() == "MIS playground"
    assert watched.complaints == []


def test_a_server_with_a_key_shows_the_page_and_accepts_the_key(keyed: RunningServer, open_page: Open) -> None:
    watched = open_page(address(keyed))
    page = watched.page
    expect(page.locator("#model")).to_have_text("This server wants an API key.")
    send(page)
    expect(page.locator("#error")).to_contain_text("401 invalid_api_key: The API key is missing or wrong")
    enter_key(page)
    expect(page.locator("#model")).not_to_have_text("This server wants an API key.")
    send(page)
    expect(page.locator(".outcomes li")).to_have_count(4)
    page.click("#code summary")
    assert KEY not in page.url
    assert KEY not in page.locator("#snippets").inner_text()
    stored = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert stored == '[{},{},""]'
    page.check("#with-key")
    assert page.locator("#snippets").inner_text().count(KEY) == 2
    assert KEY not in page.url
    page.reload()
    expect(page.locator("#key")).to_have_value("")


@pytest.mark.parametrize("language", ["curl", "Python"])
@pytest.mark.parametrize("with_key", [False, True])
def test_the_code_asks_what_the_page_asks(
    keyed: RunningServer, open_page: Open, tmp_path: Path, language: str, with_key: bool
) -> None:
    page = open_page(address(keyed, query='It\'s "so" \\ $HOME `x`: ', items="é\n😀")).page
    enter_key(page)
    page.click("#code summary")
    page.set_checked("#with-key", with_key)
    with page.expect_response("**/v1/score") as answered:
        send(page)
    code = page.locator(f"pre[data-language={language}]").text_content() or ""
    assert (KEY in code) == with_key
    (tmp_path / "code").write_text(code)
    program = ("sh", str(tmp_path / "code")) if language == "curl" else (sys.executable, str(tmp_path / "code"))
    environment = {**os.environ, "MIS_API_KEY": "" if with_key else KEY, "NO_PROXY": "*"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert str(answered.value.json()["scores"][1][0])[:12] in done.stdout, done.stderr


def test_a_request_that_cannot_be_taken_is_told_why(server: RunningServer, open_page: Open) -> None:
    many = "Which? | " + " | ".join(str(number) for number in range(200))
    page = open_page(address(server, task="decide", questions=many)).page
    send(page)
    expect(page.locator("#error")).to_contain_text("422 too_few_label_tokens: ")
    page.click("#tab-score")
    expect(page.locator("#error")).to_be_empty()
    page.fill("[name=items]", "")
    send(page)
    expect(page.locator("#error")).to_contain_text("400 empty_items: ")
    assert page.locator("#error").bounding_box() is not None


def test_a_full_server_says_when_to_come_again(keyed: RunningServer, open_page: Open) -> None:
    page = open_page(address(keyed)).page
    enter_key(page)
    asked = httpx.Client(base_url=keyed.base_url, headers={"authorization": f"Bearer {KEY}"}, trust_env=False)
    body = {"query": [1, 2], "items": [[3]], "label_token_ids": [4]}
    engine = keyed.engine_pid
    freeze(engine)
    try:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(asked.post, "/v1/score", json=body, timeout=120)
            while asked.get("/load").json()["server_load"] == 0:
                assert not waiting.done()
                time.sleep(0.02)
            send(page)
            expect(page.locator("#error")).to_contain_text("429 queue_full: ")
            expect(page.locator("#error")).to_contain_text("Try again in 1 s.")
            os.kill(engine, signal.SIGCONT)
            assert waiting.result().status_code == 200
    finally:
        os.kill(engine, signal.SIGCONT)
        asked.close()
