"""Each dialect's answer has the scores of `lmgym score`, in the form that its trainer reads."""

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from reward_servers import RewardServer

from lmgym.cli.main import main

CHATS = [
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi there"}],
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "go away"}],
    [
        {"role": "system", "content": "A friend."},
        {"role": "user", "content": "What is tea?"},
        {"role": "assistant", "content": "A drink.\n\n- hot"},
        {"role": "user", "content": "And coffee?"},
        {"role": "assistant", "content": "Another one."},
    ],
]


def chatml(chat: list[dict]) -> str:
    """As Qwen's or SmolLM2's template renders it, which is not that of the scorers."""
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)


TEXTS = [chatml(chat) for chat in CHATS]


@pytest.fixture(scope="module")
def expected(calibrated, scorer_folders, tmp_path_factory) -> dict[str, list[float]]:
    """Scores that `lmgym score` writes for the chats, by scorer."""
    folder, found = tmp_path_factory.mktemp("scored"), {}
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    for name, scorer in (("a", calibrated), ("b", scorer_folders["gpt2"])):
        done = CliRunner().invoke(main, ["score", str(scorer), str(rows), "--output", str(folder / f"{name}.jsonl")])
        assert done.exit_code == 0, done.output
        found[name] = [json.loads(line)["score"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return found


def test_openrlhf_gets_a_reward_a_sample_and_the_other_scorers_as_logs(server: RewardServer, expected) -> None:
    for text, a, b in zip(TEXTS, expected["a"], expected["b"], strict=True):
        status, answer, _ = server.ask("/get_reward", {"query": [text], "prompts": ["<cut>"], "labels": ["x"]})
        assert status == 200
        assert answer["rewards"] == answer["scores"] == pytest.approx([a], abs=1e-5)
        logs = answer["extra_logs"]
        assert logs["b"] == pytest.approx([b], abs=1e-5)
        assert logs["both"] == pytest.approx([(a + b) / 2], abs=1e-5)
        assert logs["both/spread"] == pytest.approx([abs(a - b) / 2], abs=1e-5)
        assert set(logs) == {"alarm", "truncated", "a/z", "b", "both", "both/spread"}
        assert answer["lmgym"]["template"] == "reparse"
        assert len(answer["lmgym"]["fingerprint"]) == 16


def test_openrlhf_may_name_a_scorer_in_the_address(server: RewardServer, expected) -> None:
    _, answer, _ = server.ask("/get_reward?model=b", {"query": TEXTS})
    assert answer["rewards"] == pytest.approx(expected["b"], abs=1e-5)
    prompt, reply = "What is tea? ", "A drink."
    _, plain, _ = server.ask("/get_reward", {"query": [prompt + reply], "prompts": [prompt], "labels": [None]})
    _, same, _ = server.ask("/v1/score", {"conversations": [{"prompt": prompt, "reply": reply}], "scorers": ["a"]})
    assert plain["lmgym"]["template"] == "prompt"
    assert plain["rewards"] == pytest.approx([same["scores"][0]["a"]["score"]], abs=1e-5)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_clients_of_vllm_and_sglang_get_raw_logits(server: RewardServer, expected, calibrated: Path, path: str) -> None:
    # verl reads data[-1].probs[-1], and names the folder as its model
    for model, name in (("a", "a"), (str(calibrated), "a"), ("b", "b")):
        _, answer, _ = server.ask(path, {"model": model, "input": TEXTS, "use_activation": False})
        assert [row["probs"][-1] for row in answer["data"]] == pytest.approx(expected[name], abs=1e-5)
        assert [row["index"] for row in answer["data"]] == [0, 1, 2]
        assert answer["model"] == model
        assert answer["usage"]["prompt_tokens"] > 0
    _, one, _ = server.ask(path, {"input": TEXTS[1]})
    assert one["data"][-1]["probs"] == pytest.approx([expected["a"][1]], abs=1e-5)
    _, messages, _ = server.ask(path, {"messages": CHATS[2]})
    assert messages["data"][0]["probs"] == pytest.approx([expected["a"][2]], abs=1e-5)
    assert messages["lmgym"]["template"] == "messages"


def test_an_activation_is_applied_only_if_it_is_asked_for(server: RewardServer, expected) -> None:
    for name in ("use_activation", "activation"):
        _, answer, _ = server.ask("/classify", {"input": TEXTS, name: True})
        sigmoids = [1 / (1 + math.exp(-score)) for score in expected["a"]]
        assert [row["probs"][0] for row in answer["data"]] == pytest.approx(sigmoids, abs=1e-5)


def test_verl_reads_the_last_number_of_an_embedding(server: RewardServer, expected) -> None:
    _, answer, _ = server.ask("/v1/embeddings", {"model": "a", "input": TEXTS})
    assert [row["embedding"][-1] for row in answer["data"]] == pytest.approx(expected["a"], abs=1e-5)
    _, answer, _ = server.ask("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    [number] = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), np.float32)
    assert number == pytest.approx(expected["a"][0], abs=1e-5)


def test_the_plain_answer_has_every_scorer_with_what_it_knows(server: RewardServer, expected) -> None:
    forms = [CHATS[0], {"messages": CHATS[1]}, TEXTS[2], {"prompt": "hello", "reply": " hi there "}]
    _, answer, _ = server.ask("/v1/score", {"conversations": forms})
    a = [row["a"] for row in answer["scores"]]
    assert [one["score"] for one in a] == pytest.approx([*expected["a"], expected["a"][0]], abs=1e-5)
    assert [one["z"] for one in a[:3]] == pytest.approx([(s - 0.5) / 2 for s in expected["a"]], abs=1e-5)
    assert [one["quantile"] for one in a[:3]] == pytest.approx([(s + 5) / 10 for s in expected["a"]], abs=1e-5)
    assert all(one["truncated"] is False and one["tokens"] > 3 for one in a)
    assert set(answer["scores"][0]["b"]) == {"score", "tokens", "truncated"}  # it was saved without reference replies
    both = answer["scores"][2]["both"]
    assert both["members"] == pytest.approx([expected["a"][2], expected["b"][2]], abs=1e-5)
    assert both["spread"] == pytest.approx(abs(both["members"][0] - both["members"][1]) / 2)
    assert answer["template"] == "messages+reparse"
    assert set(answer["scorers"]) == {"a", "b", "both"}
    assert "prob" not in json.dumps(answer)


def test_pairs_have_the_probability_that_people_prefer_a(server: RewardServer, expected) -> None:
    pair = {"prompt": "hello", "a": "hi there", "b": "go away"}
    _, answer, _ = server.ask("/v1/score", {"pairs": [pair], "scorers": ["a", "both"]})
    margins = [expected[name][0] - expected[name][1] for name in ("a", "b")]
    chances = [1 / (1 + math.exp(-margin)) for margin in margins]
    [found] = answer["pairs"]
    assert found["a"]["p_a_beats_b"] == pytest.approx(chances[0], abs=1e-5)
    assert found["both"]["p_a_beats_b"] == pytest.approx(sum(chances) / 2, abs=1e-5)
    assert found["a"]["b"]["score"] == pytest.approx(expected["a"][1], abs=1e-5)


def test_raw_text_is_scored_as_it_is(server: RewardServer, expected) -> None:
    rendered = "User: hello\nBot: hi there<|eos|>"  # by the scorer's own template
    for words in ({"template": "raw"}, {"template": "reparse"}):
        _, answer, _ = server.ask("/classify", {"input": rendered} | words)
        assert answer["data"][0]["probs"] == pytest.approx([expected["a"][0]], abs=1e-5)
        assert answer["lmgym"]["template"] == words["template"]
    _, other, _ = server.ask("/classify?template=raw", {"input": TEXTS[0]})
    assert other["data"][0]["probs"][0] != pytest.approx(expected["a"][0], abs=1e-3)


def test_a_text_that_is_too_long_is_cut_by_the_rule_and_said(server: RewardServer, calibrated: Path) -> None:
    from lmgym.messages import from_messages
    from lmgym.scoring.scorers import HFScorer

    turns = [{"role": ("user", "assistant")[i % 2], "content": f"turn {i} of many"} for i in range(10_000)]
    _, answer, _ = server.ask("/v1/score", {"conversations": [turns, CHATS[0]], "scorers": ["a"]})
    long, short = (row["a"] for row in answer["scores"])
    whole = from_messages(turns)
    conversation = type(whole)(whole.turns[:-1])
    assert long["score"] == pytest.approx(
        HFScorer.load(calibrated).score([conversation], ["turn 9999 of many"]).item(), abs=1e-5
    )
    assert long["truncated"]
    assert long["dropped_turns"] > 9_000
    assert short["truncated"] is False
    text = "word " * 3000
    _, raw, _ = server.ask("/classify", {"input": [text, "short"], "template": "raw"})
    assert raw["lmgym"]["truncated"] == [0]
