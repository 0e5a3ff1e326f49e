"""Servers whose replies are not what was asked for: copies instead of samples, and text that a parser has taken."""

import pytest

from lmgym.errors import ServerError
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


def test_text_that_a_parser_has_taken_is_said_once(serve, capsys: pytest.CaptureFixture[str]) -> None:
    thinking = generator(serve("thinks"))
    for _ in range(2):
        [[reply]] = thinking.reply([HELLO], 1, Sampling())
        assert reply.text == "0.0 to hello"
    assert capsys.readouterr().err.count("returned reasoning_content beside the text, which lacks that part") == 1
    with pytest.raises(ServerError, match="it is in reasoning_content: start the server without that parser"):
        generator(serve("thinks_only")).reply([HELLO], 1, Sampling())


def test_tokens_of_several_replies_are_counted_by_their_log_probabilities(serve) -> None:
    server = serve("logprobs")
    [replies] = generator(server, top_logprobs=1).reply([HELLO], 2, Sampling())
    assert [(reply.tokens, reply.logprobs) for reply in replies] == [(2, (-0.5,) * 2), (3, (-0.5,) * 3)]
    [replies] = generator(server).reply([HELLO], 2, Sampling())
    assert [reply.tokens for reply in replies] == [0, 0], "the server counted both together"
