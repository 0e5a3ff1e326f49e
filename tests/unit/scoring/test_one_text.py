"""One reply, one tokenisation: lines, lists and code reach the model unchanged in every stage."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from chat_texts import CHATML

from lmgym.data.pairs import read_pair
from lmgym.data.records import Record
from lmgym.environments.protocol import Sample, ScoreRequest
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.generation.protocol import Completion, Sampling, ScriptedGenerator
from lmgym.scoring.best_of_n import BestOfN
from lmgym.scoring.ranking import score_replies
from lmgym.scoring.retries import RetryPolicy
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn, messages
from ppo.evaluation import monitor
from reward_models.data import tokenize_pairs
from sft.conversations import read_chat
from sft.tokenization import tokenize_chats

PROMPT = Conversation((Turn("user", "how do i\nsort a list?"),), "Be brief.")
REPLY = "Two ways:\n\n1. `sorted(x)`\n2. in place:\n\n```python\nx = [3, 1]\nif x:\n    x.sort()\n```\n\n- done"
OTHER = "no."


@pytest.fixture(params=["flat", "chatml"])
def scorer(request, scorer_folders: dict[str, Path]) -> HFScorer:
    scorer = HFScorer.load(scorer_folders["llama"], max_length=250)
    scorer.as_sampled = True  # as in the scorer.json of a trained one
    if request.param == "chatml":
        scorer.tokenizer.chat_template = CHATML
    return scorer


@pytest.fixture
def seen(scorer: HFScorer, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Token ids of the texts that the scorer is shown."""
    found: list[list[int]] = []
    logits = scorer._logits

    def recorded(rows, alone):
        found.extend(row.prefix + suffix for row in rows for suffix in row.suffixes)
        return logits(rows, alone)

    monkeypatch.setattr(scorer, "_logits", recorded)
    return found


def test_a_reply_of_several_lines_has_the_same_ids_in_every_stage(scorer: HFScorer, seen: list[list[int]]) -> None:
    tokenizer = scorer.tokenizer
    said = f" {REPLY}\n"  # as a policy samples it: white space around a reply is not part of it
    row = {"prompt": messages(PROMPT), "chosen": said, "rejected": OTHER}
    [pair], rejections = tokenize_pairs([read_pair(Record("a", 1, row))], tokenizer, 250)
    assert rejections == []
    trained = pair.replies.prefix + pair.replies.suffixes[0]
    assert REPLY in tokenizer.decode(trained)

    scorer.score([PROMPT], [REPLY])
    completion = Completion(said, "eos", (5,), (0.0,), 1)
    sample = Sample(ScoreRequest("policy", PROMPT, said, {}), "", completion)
    ScorerReward({"a": scorer}, {"a": 1.0}).rewards([sample])
    episode = SimpleNamespace(index=0, agent="policy", steps=[SimpleNamespace(completion=completion, prompt_text="")])
    monitor(SimpleNamespace(monitors={"a": scorer}), [episode], [{"prompt": PROMPT}], RetryPolicy(None, 0))  # type: ignore[arg-type]
    BestOfN(ScriptedGenerator([said]), scorer, 1).reply([PROMPT], 1, Sampling())
    score_replies({"a": scorer}, PROMPT, [REPLY])
    assert seen == [trained] * 5

    chat = [*messages(PROMPT), {"role": "assistant", "content": said}]
    [example], _ = tokenize_chats([read_chat(Record("a", 1, {"messages": chat}))], tokenizer, 250)
    assert trained[: len(example.ids)] == example.ids
    assert tokenizer.decode(example.targets).removesuffix(tokenizer.eos_token).strip() == REPLY
