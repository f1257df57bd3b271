"""The fields that the playground's form has no place for: its page makes a table of what the server says of them."""

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from field_tables import DECLARED
from mis_core.tasks.fields.described import rows_of, schema_of, without_effect
from mis_testing.server import RunningServer
from playground_pages import Watched, address, enter_key, send
from wider_bodies import HELP, wider

Open = Callable[..., Watched]

ROUTES = {
    "score": "/v1/score",
    "rerank": "/v1/rerank",
    "decide": "/v1/decisions",
    "systemone": "/v1/systemone",
    "chat": "/v1/chat/completions",
}
MOST = "2147483647"
FIELDS = [
    # One of each task that the form has no place for: the range as its control has it, what is typed, what is sent.
    ("score", "temperature", {"min": "0", "max": "", "step": "any", "placeholder": "1"}, "0.5", 0.5),
    ("rerank", "top_n", {"min": "1", "max": MOST, "step": "1", "placeholder": ""}, "2", 2),
    ("decide", "choice_order", {}, "independent", "independent"),
    ("chat", "top_k", {"min": "-1", "max": "2147483646", "step": "1", "placeholder": "0"}, "5", 5),
]


def open_options(page: Page) -> None:
    page.click("#more summary")
    expect(page.locator("#more")).to_have_attribute("open", "")


def control(page: Page, task: str, field: str) -> Locator:
    return page.locator(f"[name='{task}.{field}']")


def help_of(page: Page, of: Locator) -> Locator:
    return page.locator("#options tr", has=of).locator(".hint")


def set_to(of: Locator, value: str) -> None:
    if of.evaluate("control => control.tagName") == "SELECT":
        of.select_option(value)
    else:
        of.fill(value)


def sent_by(page: Page, task: str) -> dict[str, Any]:
    """The body that is sent when the button is pressed."""
    with page.expect_request(f"**{ROUTES[task]}") as asked:
        send(page)
    expect(page.locator("#error")).to_be_empty()
    return asked.value.post_data_json


def test_what_is_set_is_sent_and_is_in_the_code_and_the_address(server: RunningServer, open_page: Open) -> None:
    watched = open_page(address(server, max_tokens="4"), width=390)
    page = watched.page
    open_options(page)
    page.click("#code summary")
    for task, field, attributes, typed, sent in FIELDS:
        page.click(f"#tab-{task}")
        chosen = control(page, task, field)
        (declared,) = (row.help for row in rows_of(DECLARED[ROUTES[task]]) if row.name == field)
        expect(help_of(page, chosen)).to_have_text(declared.replace("`", ""))
        expect(chosen).to_have_accessible_name(field)
        expect(chosen).to_have_accessible_description(declared.replace("`", ""))
        assert {name: chosen.get_attribute(name) for name in attributes} == attributes
        assert field not in sent_by(page, task)
        set_to(chosen, typed)
        expect(page.locator("#options-set")).to_have_text("· 1 set")
        assert sent_by(page, task)[field] == sent
        for language in ("curl", "Python"):
            expect(page.locator(f"pre[data-language={language}]")).to_contain_text(f'"{field}": {json.dumps(sent)}')
        assert watched.overflow <= 0
    assert watched.complaints == []
    other = open_page(page.url).page
    open_options(other)
    for task, field, _, typed, sent in FIELDS:
        other.click(f"#tab-{task}")
        expect(control(other, task, field)).to_have_value(typed)
        assert sent_by(other, task)[field] == sent
        set_to(control(other, task, field), "")
        assert f"{task}.{field}" not in other.url


def test_each_field_has_a_place_and_no_other_has_one(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server, max_tokens="4")).page
    open_options(page)
    for task, route in ROUTES.items():
        page.click(f"#tab-{task}")
        sent = sent_by(page, task)
        rows = {row.name: row for row in rows_of(DECLARED[route])}
        unsupported = {name for name, row in rows.items() if row.help.startswith("Not supported")}
        useless = {*without_effect(DECLARED[route]), *unsupported}
        assert useless or task == "score"
        apart = {"score": {"label_token_ids"}, "chat": {"n"}}.get(task, set())
        expected = [name for name in rows if name not in {*sent, *useless, *apart}]
        names = page.locator("#options fieldset:not([hidden]) tr label")
        assert sorted(names.all_text_contents()) == sorted(expected)
        assert len(expected) > 2


def test_a_field_that_is_declared_anew_is_there(server: RunningServer, open_page: Open) -> None:
    page = open_page("about:blank").page

    def widen(route: Route) -> None:
        document = route.fetch().json()
        for path in ROUTES.values():
            body = document["paths"][path]["post"]["requestBody"]
            body["content"]["application/json"]["schema"] = schema_of(wider(path))
        route.fulfill(json=document)

    page.route("**/openapi.json", widen)
    sent = []
    for path in ROUTES.values():
        page.route(f"**{path}", lambda route: (sent.append(route.request.post_data_json), route.abort()))
    page.goto(address(server))
    open_options(page)
    for task in ROUTES:
        page.click(f"#tab-{task}")
        wombats = control(page, task, "wombats")
        expect(help_of(page, wombats)).to_have_text(HELP)
        assert [wombats.get_attribute(name) for name in ("type", "min", "max", "step")] == ["number", "1", "9", "1"]
        wombats.fill("10")
        page.click("#send")
        expect(page.locator("#options tr", has=wombats).locator(".fault")).to_be_visible()
        wombats.fill("3")
        page.click("#send")
        expect(page.locator("#error")).to_contain_text("The server cannot be reached.")
    assert [body["wombats"] for body in sent] == [3] * len(ROUTES)


def test_what_is_no_json_is_told_and_not_sent(server: RunningServer, open_page: Open) -> None:
    link = {"task": "chat", "max_tokens": "4", "chat.stop": '["x"', "score.temperature": "-1"}
    watched = open_page(address(server, **link))
    page = watched.page
    stop, fault = control(page, "chat", "stop"), page.locator("#option-chat-stop-fault")
    expect(page.locator("#more")).to_be_visible()
    page.click("#send")
    expect(stop).to_be_focused()  # where the options were folded, they no longer are
    expect(fault).to_contain_text("This is not JSON.")
    expect(fault).to_be_visible()
    expect(stop).to_have_attribute("aria-invalid", "true")
    assert not [url for url in watched.asked if url.endswith(ROUTES["chat"])]
    stop.fill('["x"]')
    expect(fault).to_be_hidden()
    assert sent_by(page, "chat")["stop"] == ["x"]  # what is wrong with another task's field does not matter
    page.click("#tab-score")
    page.click("#compare")
    expect(control(page, "score", "temperature")).to_be_focused()
    assert not [url for url in watched.asked if url.endswith(ROUTES["score"])]
    assert watched.complaints == []


def test_controls_of_the_form_say_what_the_server_says_of_them(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server)).page
    for task, names in {
        "score": ["query", "labels"],
        "rerank": ["query"],
        "chat": ["max_tokens", "temperature"],
    }.items():
        page.click(f"#tab-{task}")
        helps = {row.name: row.help for row in rows_of(DECLARED[ROUTES[task]])}
        for name in names:
            expect(page.locator(f"[name={name}]")).to_have_attribute("title", helps[name])
    ranges = {"max_tokens": ["1", MOST, "1"], "temperature": ["0", "2", "any"]}
    for name, expected in ranges.items():
        assert [page.locator(f"[name={name}]").get_attribute(each) for each in ("min", "max", "step")] == expected


def test_items_that_were_not_scored_say_why(server: RunningServer, open_page: Open) -> None:
    long = "word " * 9000
    link = {f"{task}.on_error": "item" for task in ("score", "rerank", "decide")}
    page = open_page(address(server, **link)).page
    first, last = page.locator(".outcomes li").first, page.locator(".outcomes li").last

    def refuse_one(route: Route) -> None:  # this server finds nothing wrong with a text, and truncates what is long
        reply = route.fetch().json()
        reply["results"] = [each for each in reply["results"] if each["index"] == 0]
        reply["errors"] = [{"index": 1, "code": "context_length_exceeded", "message": "Too many tokens."}]
        route.fulfill(json=reply)

    page.route("**/v1/rerank", refuse_one)
    for task, lines in {"score": "items", "rerank": "items", "decide": "questions"}.items():
        page.click(f"#tab-{task}")
        expect(page.locator("#options-set")).to_have_text("· 1 set")
        page.fill(f"[name={lines}]", f"It is late.\n{long}")
        assert sent_by(page, task)["on_error"] == "item"
        expect(page.locator(".outcomes li")).to_have_count(2)
        expect(first.locator(".bar").first).to_be_visible()
        expect(last.locator(".facts")).to_contain_text("tokens")
        expect(last.locator(".bar")).to_have_count(0)


def test_a_server_with_a_key_offers_them_with_the_key(keyed: RunningServer, open_page: Open) -> None:
    page = open_page(address(keyed, **{"score.temperature": "0.5"})).page
    expect(page.locator("#model")).to_have_text("This server wants an API key.")
    expect(page.locator("#more")).to_be_hidden()
    page.fill("[name=items]", "One")
    enter_key(page)
    expect(page.locator("#more")).to_be_visible()
    expect(control(page, "score", "temperature")).to_have_value("0.5")
    expect(page.locator("[name=items]")).to_have_value("One")
    page.fill("#key", "wrong")
    page.locator("#key").blur()
    expect(page.locator("#more")).to_be_hidden()
    assert "score.temperature=0.5" in page.url


def test_without_the_document_the_page_works_as_before(server: RunningServer, open_page: Open) -> None:
    page = open_page("about:blank").page
    page.route("**/openapi.json", lambda route: route.fulfill(status=404, body="no"))
    page.goto(address(server, task="chat", max_tokens="4", temperature="0.7"))
    send(page)
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator(".chat .text")).to_have_count(2)
    expect(page.locator("#more")).to_be_hidden()
