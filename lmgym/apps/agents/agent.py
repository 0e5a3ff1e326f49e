"""`Agent`: LlamaGym's class, over exact ids, a generalised advantage over turns, and lmgym's own PPO.

    from lmgym.agents import Agent, AutoModelForCausalLMWithValueHead

Design decisions:
- A turn of the episode is a call of `llm` with `current_episode_messages` itself, so that a program with an `act` of
  its own learns too. `llm` with any other messages replies, and nothing is learned from it.
- `observe` and `respond` hold all rules of the dialogue. They need no model: `AgentEnvironment` plays by them too.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lmgym.apps.agents.dialogue import Messages, add_message, conversation_of
from lmgym.apps.agents.episode_learner import EpisodeLearner
from lmgym.apps.agents.settings import agent_config, counts_turns
from lmgym.errors import InputError, shown
from lmgym.models.devices import present_device
from lmgym.training.reporting import show_notes

OnInvalid = Literal["penalty", "retry", "truncate"]


@dataclass(frozen=True)
class Outcome:
    """The effect of a reply."""

    action: Any = None
    """None: the reply is no action"""
    reward: float = 0.0
    """of the reply itself, beside the environment's"""
    again: bool = False
    """the same prompt is to be answered once more"""
    over: bool = False
    """the episode stops here"""


class Agent(ABC):
    """A language model that acts in an environment and learns from its rewards.

    Subclasses give the three methods below. `model` is an `AutoModelForCausalLMWithValueHead`, or a causal model of
    transformers or peft. Raises InputError for models, tokenizers, devices and settings that do not work.
    """

    on_invalid: OnInvalid = "penalty"
    """a reply that is no action costs `invalid_penalty`; or is left out and asked for again, `retries` times a turn,
    after which the episode stops; or costs `invalid_penalty` and stops the episode"""
    invalid_penalty: float = 1.0
    retries: int = 3
    action_space: Any = None
    """a space of Gymnasium, or anything with `contains`, outside which an action counts as none; None: not checked"""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: Any,
        generate_config_dict: Mapping[str, Any] | None = None,
        ppo_config_dict: Mapping[str, Any] | None = None,
        on_invalid: OnInvalid | None = None,
        action_space: Any = None,
    ) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.on_invalid = self.on_invalid if on_invalid is None else on_invalid
        self.action_space = self.action_space if action_space is None else action_space
        if self.on_invalid not in get_args(OnInvalid):
            raise InputError(f"on_invalid={shown(self.on_invalid)}; needed: {', '.join(get_args(OnInvalid))}")
        if self.action_space is not None and not hasattr(self.action_space, "contains"):
            raise InputError(
                f"action_space={shown(self.action_space)}; needed: a space of Gymnasium, as env.action_space"
            )
        self._learner: EpisodeLearner | None = None
        if model is not None:
            place = present_device(device)
            config, notes = agent_config(generate_config_dict, ppo_config_dict, place.type)
            show_notes([f"lmgym.agents: {note}" for note in notes])
            self._learner = EpisodeLearner(model, tokenizer, place, config, counts_turns(ppo_config_dict))
            self.model = self._learner.model
        self.start_episode()

    @abstractmethod
    def get_system_prompt(self) -> str:
        """The rules, as the model reads them."""

    @abstractmethod
    def format_observation(self, observation: Any) -> str:
        """An observation of the environment as text."""

    @abstractmethod
    def extract_action(self, response: str) -> Any:
        """The action in a reply. None, or any exception: there is none."""

    @property
    def current_episode_seed(self) -> int:
        """The seed of this episode's replies; `env.reset(seed=...)` with it makes the whole episode repeatable."""
        return self._with_model().episode.seed

    def act(self, observation: Any) -> Any:
        """The action of a sampled reply; None if the reply is none, and after `on_invalid` has stopped the episode."""
        if self._over:
            return None
        self.observe(observation)
        while True:
            outcome = self.respond(self.llm(self.current_episode_messages))
            if outcome.reward:
                self._with_model().add_reward(outcome.reward)
            if not outcome.again:
                return outcome.action

    def assign_reward(self, reward: float) -> None:
        """Reward the latest action. Raises InputError before the first one, and for what is no finite number."""
        if self._learner is not None and not self._over:
            self._learner.add_reward(reward)
        self.current_episode_rewards.append(float(reward))

    def terminate_episode(self, train: bool = True, next_observation: Any = None) -> dict[str, float]:
        """End the episode; every `batch_size` episodes (or turns), an update, whose metrics are returned, else {}.

        With `next_observation` it was truncated, as by a time limit: the observation's value is that of what would
        have followed. Episodes with `train=False` are not learned from.
        """
        learner = self._with_model()
        if train:
            if next_observation is not None:
                self.observe(next_observation)
            elif self._over and self.current_episode_messages[-1]["role"] != "user":
                self.observe(self._observation)
            cut = self._over or next_observation is not None
            learner.finish(conversation_of(self.current_episode_messages, learner.has_system) if cut else None)
        metrics = learner.update() if train and learner.ready else {}
        self.start_episode()
        return metrics

    def train_batch(self) -> dict[str, float]:
        """An update of PPO on the episodes that wait for one, however few they are; its metrics, {} without any."""
        metrics = self._with_model().update()
        self.start_episode()
        return metrics

    def llm(self, messages: Messages) -> str:
        """A sampled reply to chat messages: a turn of the episode if they are `current_episode_messages` itself."""
        learner = self._with_model()
        conversation = conversation_of(messages, learner.has_system)
        if messages is self.current_episode_messages:
            return learner.reply(conversation)
        return learner.reply_aside(conversation)

    def start_episode(self) -> None:
        """Begin with the system prompt alone."""
        self.current_episode_messages: Messages = []
        self.current_episode_rewards: list[float] = []
        self._over, self._failures, self._observation = False, 0, None
        if prompt := self.get_system_prompt():
            add_message(self.current_episode_messages, "system", prompt)
        if self._learner is not None:
            self._learner.begin(self)

    def observe(self, observation: Any) -> None:
        """Add an observation to the messages. Raises InputError if `format_observation` gives no text."""
        text = self.format_observation(observation)
        if not isinstance(text, str):
            raise InputError(
                f"format_observation of {type(self).__name__} gave a {type(text).__name__}; needed: the observation as "
                "text"
            )
        self._observation = observation
        add_message(self.current_episode_messages, "user", text)

    def respond(self, reply: str) -> Outcome:
        """Add a reply to the messages, unless it is to be asked for again, and read its action."""
        action = self._action_of(reply.strip())
        if action is None and self.on_invalid == "retry":
            self._failures += 1
            self._over = self._failures > self.retries
            return Outcome(again=not self._over, over=self._over)
        self._failures = 0
        add_message(self.current_episode_messages, "assistant", reply.strip())
        if action is not None:
            return Outcome(action)
        self._over = self.on_invalid == "truncate"
        return Outcome(reward=-self.invalid_penalty, over=self._over)

    def _action_of(self, reply: str) -> Any:
        try:
            action = self.extract_action(reply)
            fits = self.action_space is None or action is None or self.action_space.contains(action)
        except Exception:  # a reader of replies may fail at any text: that is its answer
            return None
        return action if fits else None

    def _with_model(self) -> EpisodeLearner:
        if self._learner is None:
            raise InputError(f"{type(self).__name__} has no model here; needed: {type(self).__name__}(model, ...)")
        return self._learner
