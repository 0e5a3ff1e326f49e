"""Parameters that a server refuses: sent otherwise where that means the same, once, and said where it does not."""

import pytest

from lmgym.errors import InputError
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),))


def test_a_newer_model_of_openai_is_asked_as_it_takes_it_and_that_is_remembered(serve, capsys) -> None:
    server = serve("new_openai")
    generator = ServedGenerator(server.url, "tiny")
    for _ in range(2):
        generator.reply([HELLO], 1, Sampling(temperature=0))
    bodies = [one["body"] for one in server.requests]
    assert len(bodies) == 5, "three refusals in the first call, none in the second"
    assert "max_tokens" in bodies[0]
    for body in bodies[-2:]:
        assert body["max_completion_tokens"] == 64
        assert not {"max_tokens", "temperature", "top_p"} & set(body)
    assert capsys.readouterr().err.count("takes no temperature: its replies are sampled") == 1


def test_a_setting_of_the_users_own_that_is_refused_is_an_error_and_is_not_dropped(serve) -> None:
    generator = ServedGenerator(serve("new_openai").url, "tiny")
    with pytest.raises(InputError, match="'temperature' does not support this value"):
        generator.reply([HELLO], 1, Sampling(temperature=0.7))
    generator.reply([HELLO], 1, Sampling(temperature=1))
    with pytest.raises(InputError, match="'top_p' is not supported"):
        generator.reply([HELLO], 1, Sampling(temperature=1, top_p=0.9))


def test_an_effort_is_sent_as_it_is_and_none_by_default(serve) -> None:
    server = serve("good")
    ServedGenerator(server.url, "tiny", reasoning_effort="low").reply([HELLO], 1, Sampling())
    ServedGenerator(server.url, "tiny").reply([HELLO], 1, Sampling())
    first, second = (one["body"] for one in server.requests)
    assert first["reasoning_effort"] == "low"
    assert "reasoning_effort" not in second
