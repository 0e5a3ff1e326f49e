"""PPO in this process: how a run counts its updates, what it looks at before the first, and where it ends."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from broken_rollouts import shift_old_logprobs
from launching import read_metrics, words
from ppo_in_process import PLAIN, Go, train_small
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.apps.games.prisoners import PrisonersDilemma
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.errors import InputError, RunStopped
from ppo.task_setups import TaskSetup, text_with_function


def test_a_collapse_ends_at_the_last_checkpoint_whose_own_replies_were_within_bounds(go: Go, capsys) -> None:
    settings = {"max_updates": 24, "learning_rate": 1e-2, "save_updates": 4, "save_total_limit": 9}
    folder = go(name="free", max_kl=0, **settings)
    kl = list(read_metrics(folder)["kl/reference"].values())
    bound = (kl[2] + kl[3]) / 2
    assert max(kl[:3]) < bound < kl[3], "the fourth rollouts, of the policy after 12 updates, are the first beyond"
    for name in ("first launch", "relaunch"):
        with pytest.raises(RunStopped, match=r"step-00000012 holds this policy.*last good checkpoint is .*00000008;"):
            go(name="bound", max_kl=bound, **settings)
        found = sorted(path.name for path in (folder.parent / "bound/checkpoints").iterdir())
        assert found == ["collapsed-step-00000012", "step-00000004", "step-00000008"], name
    assert "resuming from" in words(capsys.readouterr().out)


def test_a_collapse_without_a_good_checkpoint_says_so(go: Go) -> None:
    with pytest.raises(RunStopped, match=r"step-00000004 holds this policy .*; there is no earlier checkpoint;"):
        go(max_kl=1e-4, learning_rate=1e-2, save_updates=4)


@pytest.mark.parametrize("leave", [sys.exit, lambda: os._exit(0)], ids=["sys.exit", "os._exit"])
@pytest.mark.parametrize("where", ["constructor", "builder", "reset"])
def test_code_of_an_environment_that_ends_the_process_ends_the_run_with_a_line_and_no_outcome_is_finished(
    go: Go, tmp_path: Path, leave, where: str
) -> None:
    class Leaving(PrisonersDilemma):
        def __init__(self) -> None:
            super().__init__(1)
            if where == "constructor":
                leave()

        def reset(self, task, seed):
            if where == "reset":
                leave()
            return super().reset(task, seed)

    def build(config, tokenizer) -> TaskSetup:
        if where == "builder":
            leave()
        return TaskSetup([{}] * 16, [{}] * 4, Leaving, None, "leaves", trained_agents=2)

    with pytest.raises((InputError, RunStopped)):
        go(build)
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert all(record["outcome"] != "finished" and record["exit_code"] for record in records)


def prisoners(trained_agents: int):
    """Both players are the policy."""
    return lambda config, tokenizer: TaskSetup(
        [{}] * 16, [{}] * 4, lambda: PrisonersDilemma(1), None, "two prisoners", trained_agents=trained_agents
    )


def test_updates_of_two_trained_players_are_counted_as_they_are_made(go: Go) -> None:
    folder = go(prisoners(2), max_updates=16, schedule="linear")
    rates = read_metrics(folder)["policy/learning_rate"]
    assert list(rates) == [8, 16], "two iterations of 2 epochs of 32 episodes in batches of 8"
    assert list(rates.values()) == pytest.approx([1e-3 * 9 / 16, 1e-3 * 1 / 16])
    with pytest.raises(InputError, match=r"2 agents .*\(first, second\), and trained_agents=1; .*\(trained_agents=2\)"):
        go(prisoners(1), name="one")


class Negotiation:
    """A buyer, and a judge that is asked only in some games; one game in sixteen cannot begin, and one breaks off."""

    begun = 0

    def reset(self, task: Task, seed: int) -> dict[str, Observation]:
        Negotiation.begun += 1
        self.number = Negotiation.begun % 16
        if self.number == 6:
            raise KeyError("no table")
        return {"buyer": Observation("a price? ")}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        if self.number == 9:
            return StepResult({"judge": Observation(42)})  # type: ignore[arg-type]
        if "buyer" in actions and self.number % 3:
            return StepResult({"judge": Observation("fair? ")}, {"buyer": float(len(actions["buyer"]) % 5)})
        return StepResult({}, {"buyer": 1.0, "judge": 0.5}, terminated=True)


def test_agents_that_were_not_asked_and_games_that_failed_are_masked_and_counted(go: Go, capsys) -> None:
    def games(config, tokenizer) -> TaskSetup:
        return TaskSetup([{}] * 16, [{}] * 4, Negotiation, None, "negotiations", trained_agents=2)

    folder = go(games, max_updates=16, max_failed_rewards=0.2)
    absent = list(read_metrics(folder)["rollout/absent_agents"].values())
    failed = list(read_metrics(folder)["rollout/failed_episodes"].values())
    assert len(absent) == len(failed) == 2
    assert all(0.1 < share < 0.4 for share in absent)
    assert failed == [pytest.approx(2 / 16)] * 2
    said = words(capsys.readouterr().out)
    assert "are of agents that did not act in their game: masked" in said
    assert re.search(
        r"4 of 32 games failed \(rollout/failed_episodes\), in the last of them: episode \d+ .*Negotiation", said
    )
    assert (folder / "model" / "config.json").is_file()


def test_an_agent_that_acts_in_no_game_is_refused_by_name_in_the_first_iteration(go: Go) -> None:
    class Misspelt(Negotiation):
        def step(self, actions: Mapping[str, str]) -> StepResult:
            result = super().step(actions)
            return replace(result, rewards={**result.rewards, "juge": 1.0})

    def games(config, tokenizer) -> TaskSetup:
        return TaskSetup([{}] * 16, [{}] * 4, Misspelt, None, "games", trained_agents=2)

    with pytest.raises(InputError, match=r"^the agent 'juge' has a reward and acts in no game .* buyer, judge act;"):
        go(games, max_failed_rewards=0.2)


def test_a_run_of_which_every_game_fails_stops_in_words(go: Go) -> None:
    class Closed(Negotiation):
        def reset(self, task: Task, seed: int) -> dict[str, Observation]:
            raise OSError("the table is closed")

    with pytest.raises(
        RunStopped, match=r"4 of 4 rewards failed.*; one of them: episode 0 .*Closed, step 0: OSError: the"
    ):
        go(lambda config, tokenizer: TaskSetup([{}] * 16, [{}] * 4, Closed, None, "closed"))


def test_an_iteration_without_any_reward_is_no_collapse_and_leaves_the_kl_coefficient(go: Go) -> None:
    asked = []

    def reward(samples, prompts, outputs, tokenizer) -> list[float]:
        asked.append(len(samples))
        if len(asked) > 1:  # the evaluation before step 1 is the first
            raise ValueError("no reward today")
        return [1.0] * len(samples)

    folder = go(
        text_with_function(reward, as_text=False), max_failed_rewards=1.0, target=1.0, init_kl_coef=0.1, eval_updates=0
    )
    metrics = read_metrics(folder)
    assert set(metrics["rollout/failed_rewards"].values()) == {1.0}
    assert set(metrics["kl/coefficient"].values()) == {0.1}


def test_old_log_probabilities_of_other_tokens_are_found_before_the_first_update(go: Go, monkeypatch) -> None:
    shift_old_logprobs(monkeypatch)
    with pytest.raises(
        InputError, match=r"before any update .* most at token \d+ of reply \d+, .*ratio must begin at 1"
    ):
        go(PLAIN)


def test_a_policy_with_a_weight_that_is_no_number_is_refused_as_that(
    talkative_models, chats_file, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(talkative_models["gpt2"])
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(talkative_models["gpt2"]).save_pretrained(tmp_path / "broken")
    with pytest.raises(InputError, match=r"not all finite: found nan in transformer\.h\.1\.mlp\.c_fc\.weight"):
        train_small(tmp_path / "broken", chats_file, tmp_path)
