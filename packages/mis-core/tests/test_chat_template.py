"""Chat templates render as `transformers` renders them."""

import pickle
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mis_core.checkpoints import open_checkpoint
from mis_core.errors import ModelError, RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.served import check_task
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_testing import tiny_checkpoint

MESSAGES = [
    {"role": "system", "content": "Answer with a word."},
    {"role": "user", "content": "Do cats <b>purr</b>? 猫\n"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And dogs?"},
]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param, num_hidden_layers=1)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_messages_become_the_text_that_transformers_makes(directory: Path, add_generation_prompt: bool) -> None:
    tokenizer = Tokenizer.from_json(Tokenizer.from_pretrained(directory).to_json())
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render(MESSAGES, add_generation_prompt=add_generation_prompt)
    theirs = AutoTokenizer.from_pretrained(directory)
    assert text == theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=add_generation_prompt)
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=add_generation_prompt, return_dict=True)
    assert tokenizer.encode(text, add_special_tokens=False).tolist() == ids["input_ids"]


def test_a_file_replaces_the_models_own_template(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(
        "{{ eos_token }}{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ mood }}", "utf-8"
    )
    template = Tokenizer.from_pretrained(directory, path).chat_template
    assert template is not None
    eos = AutoTokenizer.from_pretrained(directory).eos_token
    assert template.render(MESSAGES[3:], mood="!") == f"{eos}user=And dogs?;!"
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_pretrained(directory, tmp_path / "missing.jinja")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
        ("{% broken", "unknown tag"),
        ("{% break %}", "outside loop"),
        ("{{ 'a'|dictsort }}", "has no attribute 'items'"),
        (r"{{ '\ud800' }}", "half of a character"),
        (r"{{ raise_exception('\ud800') }}", r"\\ud800"),
    ],
)
def test_what_a_template_refuses_is_an_error_of_the_request(directory: Path, source: str, reason: str) -> None:
    tokenizer = Tokenizer.from_pretrained(directory)
    assert tokenizer.chat_template is not None
    broken = type(tokenizer.chat_template)(source)
    with pytest.raises(RequestError, match=reason) as refused:
        broken.render(MESSAGES)
    assert (refused.value.code, refused.value.param) == ("invalid_messages", "messages")
    assert pickle.loads(pickle.dumps(refused.value)).message == refused.value.message


def test_byte_order_marks_of_templates_and_settings_are_dropped(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model", "qwen3", num_hidden_layers=1)
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for path, text in ((tmp_path / "given.jinja", source), (folder / "chat_template.jinja", source)):
        path.write_text(text, "utf-8-sig")
    settings = open_checkpoint(folder).settings()
    config = folder / "config.json"
    config.write_text(config.read_text("utf-8"), "utf-8-sig")
    assert open_checkpoint(folder).settings() == settings
    config.write_text(config.read_text("utf-8-sig"), "utf-8")  # `transformers` takes none
    given = Tokenizer.from_pretrained(folder, tmp_path / "given.jinja", tmp_path / "given.jinja")
    for template in (given.chat_template, given.rerank_template, Tokenizer.from_pretrained(folder).chat_template):
        assert template is not None
        assert template.render([{"role": "user", "content": "text"}]) == "text"


def test_a_broken_template_is_found_at_the_start(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text("{% break %}")
    for files, flag in (((path,), "--chat-template"), ((None, path), "--rerank-template")):
        with pytest.raises(ModelError, match=f"{flag} cannot be compiled: 'break' outside loop"):
            Tokenizer.from_pretrained(directory, *files).compiled()
    own = Tokenizer.from_pretrained(directory)
    assert own.compiled().chat_template == own.chat_template
    own.chat_template = ChatTemplate("{% break %}")
    known = own.compiled()  # its scores are served
    for task in ("chat", "decide", "rerank"):
        with pytest.raises(RequestError, match="outside loop") as refused:
            check_task(task, known, Limits(context_length=256, vocab_size=1024, rerank_recipe="generic"))
        assert refused.value.code == "task_not_supported"
    check_task("score", known, Limits(context_length=256, vocab_size=1024))
