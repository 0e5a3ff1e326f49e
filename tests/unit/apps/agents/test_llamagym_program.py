"""A program as LlamaGym's documentation shows them runs with two imports changed, and updates where LlamaGym's does."""

import runpy
from pathlib import Path

import pytest

PROGRAM = """
import gymnasium as gym
import torch
from llamagym import Agent
from peft import LoraConfig
from tqdm import trange
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead


class BlackjackAgent(Agent):
    def get_system_prompt(self) -> str:
        return "You are an expert blackjack player. Every turn, you'll see your current sum, the dealer's showing card \
value, and whether you have a usable ace. Win by exceeding the dealer's hand but not exceeding 21. Decide whether to \
stay with your current sum by writing 'Action: 0' or accept another card by writing 'Action: 1'."

    def format_observation(self, observation: gym.core.ObsType) -> str:
        ace = "an" if bool(observation[2]) else "no"
        return f"You: {observation[0]}. Dealer: {observation[1]}. You have {ace} ace."

    def extract_action(self, response: str) -> gym.core.ActType:
        return 0 if len(response) % 2 else 1


if __name__ == "__main__":
    hyperparams = {
        "model_name": "MODEL", "env": "Blackjack-v1", "lora/r": 4, "lora/lora_alpha": 8, "lora/lora_dropout": 0.05,
        "lora/bias": "none", "lora/task_type": "CAUSAL_LM", "load_in_8bit": False, "batch_size": 8, "seed": 42,
        "episodes": 24, "generate/max_new_tokens": 4, "generate/do_sample": True, "generate/top_p": 0.6,
        "generate/top_k": 0, "generate/temperature": 0.9,
    }
    device = "cpu"
    lora_config = LoraConfig(
        **{key.split("/")[-1]: value for key, value in hyperparams.items() if key.startswith("lora/")}
    )
    model = AutoModelForCausalLMWithValueHead.from_pretrained(
        pretrained_model_name_or_path=hyperparams["model_name"],
        peft_config=lora_config,
        load_in_8bit=hyperparams["load_in_8bit"],
    ).to(device)
    tokenizer = AutoTokenizer.from_pretrained(hyperparams["model_name"])
    agent = BlackjackAgent(
        model, tokenizer, device,
        {key: value for key, value in hyperparams.items() if key.startswith("generate/")},
        {"batch_size": hyperparams["batch_size"], "mini_batch_size": hyperparams["batch_size"], UNIT},
    )
    env = gym.make(hyperparams["env"], natural=False, sab=False)
    turns, updates = [], []
    for episode in trange(hyperparams["episodes"], disable=True):
        observation, info = env.reset(seed=episode)
        env.action_space.seed(hyperparams["seed"])
        done = False
        while not done:
            action = agent.act(observation)
            observation, reward, terminated, truncated, info = env.step(action)
            agent.assign_reward(reward)
            done = terminated or truncated
        turns.append(len(agent.current_episode_rewards))
        train_stats = agent.terminate_episode()
        updates.append(bool(train_stats))
"""


def llamagyms_updates(turns: list[int], batch: int) -> list[bool]:
    """Its rule: an update once the queries are a batch, of which those beyond it are kept."""
    waiting, found = 0, []
    for count in turns:
        waiting += count
        found.append(waiting >= batch)
        waiting -= batch * found[-1]
    return found


@pytest.mark.parametrize("unit", ["episodes", "turns"])
def test_a_program_of_llamagyms_runs_unchanged_but_for_its_imports(
    unit: str, small_models: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("gymnasium")
    ours = PROGRAM.replace("from llamagym import", "from lmgym.agents import")
    ours = ours.replace("from trl import", "from lmgym.agents import").replace("MODEL", str(small_models["llama"]))
    ours = ours.replace("UNIT", f'"batch_unit": "{unit}"' if unit == "turns" else "")
    file = tmp_path / "blackjack.py"
    file.write_text(ours)
    found = runpy.run_path(str(file), run_name="__main__")
    turns, updates = found["turns"], found["updates"]
    assert any(count > 1 for count in turns), "some hands have several turns"
    if unit == "turns":
        assert updates == llamagyms_updates(turns, 8)
        assert updates.index(True) < 7
    else:
        assert [number for number, updated in enumerate(updates) if updated] == [7, 15, 23]
