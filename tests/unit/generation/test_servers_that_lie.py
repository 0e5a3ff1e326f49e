"""Servers whose replies are not what was asked for: copies instead of samples, and text that a parser has taken."""

import pytest

from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),))


def generator(server, **options) -> ServedGenerator:
    return ServedGenerator(server.url, "tiny", key_variable="", retries=0, **options)


def test_sampled_replies_that_are_all_equal_are_said_once(serve, capsys: pytest.CaptureFixture[str]) -> None:
    copying = generator(serve("copies"))
    for _ in range(2):
        copying.reply([HELLO, HELLO], 3, Sampling(temperature=0.9))
    assert capsys.readouterr().err.count("gave 3 equal replies at temperature 0.9: ") == 1


@pytest.mark.parametrize(("mode", "n", "sampling"), [
    ("copies", 1, Sampling(temperature=0.9)),
    ("copies", 3, Sampling(temperature=0.0)),
    ("copies", 3, Sampling(temperature=0.9, top_k=1)),
    ("good", 3, Sampling(temperature=0.9)),
])  # fmt: skip
def test_replies_that_may_be_equal_are_not_said(serve, mode, n, sampling, capsys: pytest.CaptureFixture[str]) -> None:
    generator(serve(mode)).reply([HELLO], n, sampling)
    assert "equal replies" not in capsys.readouterr().err


def test_short_replies_may_be_equal(serve, capsys: pytest.CaptureFixture[str]) -> None:
    generator(serve("names_a_debater")).reply([HELLO], 3, Sampling())
    assert "equal replies" not in capsys.readouterr().err


def test_what_a_servers_parser_takes_as_a_thought_is_kept_beside_the_text(serve, capsys) -> None:
    [[reply]] = generator(serve("thinks")).reply([HELLO], 1, Sampling())
    assert (reply.text, reply.thought) == ("0.0 to hello", "hm")
    thinking = generator(serve("thinks_only"))
    for _ in range(2):
        [[reply]] = thinking.reply([HELLO], 1, Sampling())
        assert (reply.text, reply.thought, reply.finish_reason) == ("", "hm", "length")
    assert capsys.readouterr().err.count("gave a reply that ended at 64 tokens, within its thoughts") == 1


def test_tool_calls_that_a_parser_has_taken_are_said_once(serve, capsys) -> None:
    calling = generator(serve("calls"))
    for _ in range(2):
        calling.reply([HELLO], 1, Sampling())
    assert capsys.readouterr().err.count("returned tool_calls beside the text, which lacks that part") == 1


def test_what_a_server_withholds_is_no_reply_and_has_its_words(serve) -> None:
    [[reply]] = generator(serve("filters")).reply([HELLO], 1, Sampling())
    assert (reply.text, reply.withheld) == ("", "finish_reason content_filter")
    [[reply]] = generator(serve("refuses_softly")).reply([HELLO], 1, Sampling())
    assert (reply.text, reply.withheld) == ("", "I cannot help with that.")
    [[reply]] = generator(serve("filters_prompts")).reply([HELLO], 1, Sampling())
    assert (reply.text, reply.withheld) == ("", "content_filter: The prompt was filtered.")


def test_tokens_of_several_replies_are_counted_by_their_log_probabilities(serve) -> None:
    server = serve("logprobs")
    [replies] = generator(server, top_logprobs=1).reply([HELLO], 2, Sampling())
    assert [(reply.tokens, reply.logprobs) for reply in replies] == [(2, (-0.5,) * 2), (3, (-0.5,) * 3)]
    [replies] = generator(server).reply([HELLO], 2, Sampling())
    assert [reply.tokens for reply in replies] == [0, 0], "the server counted both together"
