"""A program in the form of LlamaGym's examples/QA_Env (its pull request 6), in our own words.

Questions are one turn, their answer is a text, and a language model behind OpenAI's interface gives the reward.
"""

import json
import os
import random

import gymnasium as gym
import wandb
from gymnasium.spaces import Dict, Text
from llamagym import Agent
from openai import OpenAI
from peft import LoraConfig
from tqdm import trange
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead

PROBLEMS = [("What is 2 and 3?", "5"), ("What is 4 and 4?", "8")]
VERDICTS = {"hot": 100, "warmer": 50, "same": 0, "colder": -50, "cold": -100}


def evaluate_state(agent_state: str, question: str, goal_state: str, model: str = "gpt-3.5-turbo-0125") -> dict:
    response = OpenAI().chat.completions.create(
        model=model,
        max_tokens=120,
        messages=[
            {"role": "system", "content": "You compare the state of an agent with the goal of a question."},
            {"role": "user", "content": f"QUESTION: {question}\nSTATE: {agent_state}\nGOAL: {goal_state}"},
        ],
    )
    data = json.loads(response.choices[0].message.content)
    reached = data.get("reached_goal", False)
    return {"reward": 1000 if reached else VERDICTS[data["warmer_colder"]], "feedback": data["feedback"]}


class QAEnv(gym.Env):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"question": Text(max_length=500), "context": Text(max_length=500)})

    def reset(self):
        self.question, self.goal_state = PROBLEMS[random.randint(0, len(PROBLEMS) - 1)]
        return self.question, {}

    def step(self, action):
        data = evaluate_state(action, self.question, self.goal_state)
        return self.observation_space.sample(), data["reward"], True, "", data["feedback"]


class QAAgent(Agent):
    def get_system_prompt(self):
        return "You answer questions."

    def format_observation(self, question):
        return f"Question: {question}\n"

    def extract_action(self, response):
        return response.strip()


if __name__ == "__main__":
    hyperparams = {
        "model_name": "meta-llama/Llama-2-7b-chat-hf",
        "lora/r": 16,
        "lora/lora_alpha": 32,
        "lora/lora_dropout": 0.05,
        "lora/bias": "none",
        "lora/task_type": "CAUSAL_LM",
        "load_in_8bit": True,
        "batch_size": 8,
        "seed": 42069,
        "episodes": 5000,
        "generate/max_new_tokens": 32,
        "generate/do_sample": True,
        "generate/top_p": 0.6,
        "generate/top_k": 0,
        "generate/temperature": 0.9,
    }
    wandb_run = wandb.init(project=os.environ.get("WANDB_PROJECT"), config=hyperparams)
    device = "cuda:0"
    HF_TOKEN = os.environ.get("HF_TOKEN")

    lora_config = LoraConfig(
        **{key.split("/")[-1]: value for key, value in hyperparams.items() if key.startswith("lora/")}
    )
    model = AutoModelForCausalLMWithValueHead.from_pretrained(
        pretrained_model_name_or_path=hyperparams["model_name"],
        peft_config=lora_config,
        load_in_8bit=hyperparams["load_in_8bit"],
        token=HF_TOKEN,
        device_map="auto",
    )
    tokenizer = AutoTokenizer.from_pretrained(hyperparams["model_name"], token=HF_TOKEN)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    model.pretrained_model.resize_token_embeddings(len(tokenizer))

    agent = QAAgent(
        model,
        tokenizer,
        device,
        {key: value for key, value in hyperparams.items() if key.startswith("generate/")},
        {"batch_size": hyperparams["batch_size"], "mini_batch_size": hyperparams["batch_size"]},
    )
    env = QAEnv()

    for episode in trange(hyperparams["episodes"]):
        observation, info = env.reset()
        done = False

        while not done:
            action = agent.act(observation)
            wandb.log({"action": action})
            observation, reward, terminated, truncated, info = env.step(action)
            agent.assign_reward(reward)
            done = terminated

        episode_stats = {
            "episode": episode,
            "total_return": sum(agent.current_episode_rewards),
            "message_ct": len(agent.current_episode_messages),
            "episode_messages": agent.current_episode_messages,
        }
        train_stats = agent.terminate_episode()
        episode_stats.update(train_stats)
        wandb.log(episode_stats)
