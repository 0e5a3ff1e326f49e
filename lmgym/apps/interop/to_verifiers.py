"""Ours in verifiers 0.4: a taskset and its environment. Runs where verifiers is installed.

A package exports a subclass of both, which name the environment:

    class Taskset(LmgymTaskset):
        ENVIRONMENT = "games:blackjack"

    class Env(LmgymEnv):
        ENVIRONMENT = "games:blackjack"

    __all__ = ["Env", "Taskset"]

The environment plays the user: each reply of the agent is a step, and what comes next is the user's turn.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import verifiers.v1 as vf

from lmgym.apps.interop.to_trl import named
from lmgym.environments.session import Seen, Session
from lmgym.text import messages


class LmgymConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    number: int = 1000
    """tasks"""
    split: Literal["train", "validation"] = "train"


class LmgymData(vf.TaskData):
    """The number of an episode of a split."""

    split: str
    index: int


class LmgymTask(vf.Task[LmgymData]):
    """An episode; LmgymEnv gives its rewards."""


class LmgymTaskset(vf.Taskset[LmgymTask, LmgymConfig]):
    """The episodes of an environment; a subclass names it."""

    ENVIRONMENT: ClassVar[str]

    def load(self) -> Iterator[LmgymTask]:
        """Yield the tasks, whose prompts are the first observations."""
        with Session(named(self.ENVIRONMENT)) as session:
            for index in range(self.config.number):
                seen = session.reset(*session.named.episode(self.config.split, index))
                system, prompt = prompt_of(seen)
                name = f"{self.ENVIRONMENT}#{index}"
                data = LmgymData(name=name, prompt=prompt, system_prompt=system, split=self.config.split, index=index)
                yield LmgymTask(data, self.config.task)


class LmgymEnvConfig(vf.EnvConfig):
    """One agent."""

    agent: vf.AgentConfig = vf.AgentConfig()


class LmgymEnv(vf.Env[LmgymEnvConfig]):
    """Plays the episodes; a subclass names the environment."""

    ENVIRONMENT: ClassVar[str]

    async def run(self, task: LmgymTask, agents: vf.Agents) -> None:
        """One episode; its reward is the sum over turns, its metrics are those of the last step."""
        total = 0.0
        with Session(named(self.ENVIRONMENT)) as session:
            seen = session.reset(*session.named.episode(task.data.split, task.data.index))
            async with agents.agent.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    seen = session.reply(segment.last_reply)
                    total += seen.reward
                    if seen.ended:
                        break
                    segment = await interaction.turn(seen.text)
        interaction.trace.record_reward("reward", total)
        for name, value in seen.info.items():
            interaction.trace.record_metric(name, float(value))


def prompt_of(seen: Seen) -> tuple[str | None, str | list[dict]]:
    """(system prompt, prompt) of a first observation: a text, or messages where it has several turns."""
    assert seen.observation is not None
    conversation = seen.observation.conversation
    if len(conversation.turns) == 1:
        return conversation.persona or None, conversation.turns[0].text
    rows = messages(conversation)
    return (conversation.persona or None), rows[bool(conversation.persona) :]
