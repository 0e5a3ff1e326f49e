"""Chat templates that fail, never end or ask for all memory: refused in one line, within seconds."""

import signal
import threading
import time

import pytest

from lmgym import templates
from lmgym.errors import InputError
from lmgym.templates import check_template
from lmgym.text import Conversation, Turn, render, render_each

WORDS = "{% for m in messages %}{{ m.content }} {% endfor %}"
NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HELLO, OTHER = Conversation((Turn("user", "hello"),)), Conversation((Turn("user", "slow"),))


@pytest.fixture
def tokenizer(tokenizers):
    """One whose template a test may change."""
    found = tokenizers["gpt2"]
    former = found.chat_template
    yield found
    found.chat_template = former


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 1/0 }}", "fails: division by zero"),
        ("", "writes no message of a chat"),
        ("hello", "writes no message of a chat"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: it calls itself without end"),
        ("{% for i in range(10**8) %}x{% endfor %}", "fails: Range too big"),
        ("{{ 'x' * 9999999999 }}", "fails: its text takes over 1 GiB"),
        (NESTED, "fails: it did not end within 0.5 seconds"),
        ("{% for m in messages %}{{ m", "fails: unexpected end of template"),
        ("{{ messages[99].content.x }}", "fails: .*has no element 99"),
    ],
)
def test_a_template_that_fails_on_a_plain_chat_is_refused(template: str, why: str, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    tokenizer.chat_template = template
    began = time.monotonic()
    with pytest.raises(InputError, match=f"^the chat template of NAME {why}.*chat_template.jinja") as caught:
        check_template(tokenizer, "NAME")
    assert time.monotonic() - began < 10
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_template_may_refuse_a_plain_chat_since_other_chats_may_be_in_the_data(tokenizer) -> None:
    tokenizer.chat_template = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + WORDS
    )
    check_template(tokenizer, "NAME")
    with pytest.raises(InputError, match="refuses a conversation of user: no system"):
        render(tokenizer, HELLO)
    assert render(tokenizer, Conversation((Turn("user", "hello"),), "A bot.")).split() == ["A", "bot.", "hello"]


def test_a_chat_on_which_a_template_never_ends_is_left_out_of_the_others(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 1.0)
    tokenizer.chat_template = "{% if messages[0].content == 'slow' %}" + NESTED + "{% endif %}" + WORDS
    check_template(tokenizer, "NAME")
    first, slow, last = render_each(tokenizer, [HELLO, OTHER, HELLO])
    assert (first, last) == ("hello ", "hello ")
    assert "did not end within 1 seconds" in str(slow)


def test_another_timer_of_the_process_goes_on(tokenizer) -> None:
    rung = threading.Event()
    former = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        tokenizer.chat_template = WORDS
        check_template(tokenizer, "NAME")
        assert rung.wait(5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def test_off_the_main_thread_templates_render_without_a_limit(tokenizer) -> None:
    tokenizer.chat_template, found = WORDS, []
    thread = threading.Thread(target=lambda: found.append(render(tokenizer, HELLO)))
    thread.start()
    thread.join()
    assert found == ["hello "]


def test_several_named_templates_without_a_default_are_refused_and_with_one_it_is_used(tokenizer) -> None:
    tokenizer.chat_template = {"tool_use": WORDS}
    with pytest.raises(InputError, match="no default"):
        check_template(tokenizer, "NAME")
    tokenizer.chat_template = {"tool_use": WORDS, "default": "{% for m in messages %}<{{ m.content }}>{% endfor %}"}
    check_template(tokenizer, "NAME")
    call = Turn("bot", "", '{"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}')
    with pytest.raises(InputError, match="leaves out calls of tools"):
        render(tokenizer, HELLO, call)
