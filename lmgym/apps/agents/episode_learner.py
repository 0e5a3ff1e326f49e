"""Episodes, one at a time, by the rollout engine's own player, and an update of ppo on a batch of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import torch

from lmgym.apps.agents.dialogue import takes_system
from lmgym.apps.agents.value_head import AutoModelForCausalLMWithValueHead
from lmgym.environments.bounds import read_reward
from lmgym.environments.engine import hashed_seeds
from lmgym.environments.episodes import Episode, RunningEpisode
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.environments.rollout_engine import PolicyPlayer
from lmgym.errors import NON_FINITE, InputError, RunStopped, listed
from lmgym.generation.prompt_fitting import room_for_prompts
from lmgym.generation.protocol import seeds_of
from lmgym.report.status_line import StatusLine
from lmgym.text import Conversation, ensure_template
from lmgym.training.reporting import show_notes

if TYPE_CHECKING:
    from ppo.config import PPOConfig


@final
class EpisodeLearner:
    """Plays an agent's episodes, keeps those that are to be learned, and updates its model.

    With `by_turns` a batch is so many turns, as LlamaGym counts them: an update has all episodes that wait, and the
    turns beyond the batch count for the next one. Where agents share a model, an update of one comes between the
    replies of another and their own update: these are then learned as stale ones, with importance weights.
    """

    def __init__(
        self, model: Any, tokenizer: Any, device: torch.device, config: "PPOConfig", by_turns: bool = False
    ) -> None:
        from ppo.setup import Updates, connect
        from ppo.state import LoopState
        from ppo.task_setups import TaskSetup

        wrapped = isinstance(model, AutoModelForCausalLMWithValueHead)
        self.model = model if wrapped else AutoModelForCausalLMWithValueHead.from_pretrained(model)
        tokenizer = _ready(tokenizer)
        self.config, self.has_system = config, takes_system(tokenizer)
        self.by_turns, self.counted = by_turns, 0
        actor, reference = self.model.make_actor(config, tokenizer)
        show_notes([actor.decoder.note] if actor.decoder.note else [])
        setup = TaskSetup([], [], _no_environment, None, "")
        line = StatusLine("PPO", 0, "updates", shown=False)
        updates = Updates(lambda update: config.optimizer.learning_rate, _stop_non_finite, lambda update: None, line)
        self.components = connect(config, None, actor, reference, tokenizer, setup, device, updates)
        self.components.learner.split = self._split
        self.state = LoopState.fresh(config.algorithm.init_kl_coef, config.method)
        self.components.sampler.sync(self.components.engine.version)
        self.synced = self.sampled = self.model.updates
        """updates of the model before the sampler took its weights, and before the first reply that waits"""
        generator, sampling = self.components.sampler.generator, config.sampling
        room = room_for_prompts(generator.max_length, sampling)
        self.policy = PolicyPlayer(generator, tokenizer, sampling, room, "cut")
        [base] = seeds_of(sampling, 1)
        self.seed_of = hashed_seeds(base)
        self.waiting: list[Episode] = []
        self.episode = RunningEpisode(0, 0, None)  # type: ignore[arg-type]  # `begin` follows
        self._seeds, self._asides = self._seeds_of_iteration(), np.random.default_rng([config.optimizer.seed, 1, 1])

    @property
    def ready(self) -> bool:
        """True if as many episodes, or turns, wait as an update takes."""
        return self.counted >= self.config.rollout.num_rollouts

    def begin(self, agent: Any) -> None:
        """Begin an episode of the agent, with a seed that `train` would give it too."""
        self.episode = RunningEpisode(len(self.waiting), _draw(self._seeds), agent)

    def reply(self, conversation: Conversation) -> str:
        """The policy's next turn in the episode."""
        if not self.waiting and not self.episode.steps:
            self.sampled = self.model.updates
        return self._reply(self.episode, conversation)

    def reply_aside(self, conversation: Conversation) -> str:
        """A reply that belongs to no episode."""
        return self._reply(RunningEpisode(0, _draw(self._asides), self.episode.environment), conversation)

    def add_reward(self, reward: float) -> None:
        """Reward the latest turn. Raises InputError if there is none, and for what is no reward."""
        if POLICY not in self.episode.steps:
            raise InputError(f"{self.episode}: a reward of {reward} before an action; needed: act(observation) first")
        try:
            self.episode.add_reward(POLICY, read_reward(POLICY, reward))
        except ValueError as error:
            raise InputError(f"{self.episode}: {error}") from error

    def finish(self, final: Conversation | None) -> None:
        """End the episode, with `final` as one that was cut short before this prompt; one without turns is dropped."""
        shown = {POLICY: Observation(final)} if final is not None else {}
        self._receive(self.episode, StepResult(shown, terminated=final is None, truncated=final is not None))
        found = self.policy.finish([self.episode])
        self.waiting += found
        self.counted += sum(len(episode.steps) for episode in found) if self.by_turns else len(found)

    def update(self) -> dict[str, float]:
        """Steps 3 to 6 of ppo/train.py on the waiting episodes, with the same functions; the iteration's metrics."""
        from ppo.monitoring.safeguards import FirstForward, check_rollouts
        from ppo.rollouts import gather
        from ppo.train import measure_iteration, update_kl

        if not self.waiting:
            return {}
        if self.episode.steps and not self.episode.ended:
            raise InputError(
                f"{self.episode}: an update in the middle of an episode; needed: terminate_episode() first"
            )
        config, c, state, episodes = self.config, self.components, self.state, self.waiting
        self._take_weights()
        rollouts = gather(
            episodes,
            config.reward,
            self.model.updates - self.sampled,
            overlong_penalty=config.algorithm.overlong_penalty,
            max_new_tokens=config.rollout.max_new_tokens,
        )
        state.begins_at_reference = not self.model.updates
        mismatch = c.experience.measure(rollouts)
        if rollouts.staleness and config.correction[0] == "none":
            rollouts.correction = _stale_weights(rollouts)
        notes = check_rollouts(c, state, episodes, rollouts, mismatch) + c.experience.cache_notes(rollouts)
        show_notes(notes)
        rewards = c.estimate_advantages(rollouts, state.kl.value)
        first = FirstForward(c, state, rollouts, mismatch)
        critic_only = state.iteration < config.critic.critic_warmup
        learned = c.learner.learn(rollouts, state.iteration, c.engine.version, first, critic_only)
        self.model.updates += 1
        metrics = measure_iteration(config, state, episodes, rollouts, rewards, learned, mismatch)
        if why := update_kl(config, state, metrics):
            show_notes([f"warning: {why}"])
        state.iteration += 1
        self._take_weights()
        self.waiting, self._seeds = [], self._seeds_of_iteration()
        self.counted = max(0, self.counted - config.rollout.num_rollouts)
        return metrics

    def _split(self, episodes: int, batch: int, rank: int, ranks: int, seed: Sequence[int]) -> list[np.ndarray]:
        """Minibatches of `batch` episodes; of turns, as many as a batch has; of a batch that is not full, one."""
        from ppo.rollouts import minibatches

        if self.by_turns:
            parts = min(episodes, self.config.rollout.num_rollouts // batch)
            return np.array_split(np.random.default_rng(seed).permutation(episodes), parts)
        return minibatches(episodes, batch if episodes % batch == 0 else episodes, rank, ranks, seed)

    def _take_weights(self) -> None:
        """Sync the sampler with the model, if any agent has updated it since."""
        if self.synced != self.model.updates:
            self.components.sampler.sync(self.components.engine.version)
            self.synced = self.model.updates

    def _reply(self, episode: RunningEpisode, conversation: Conversation) -> str:
        self._take_weights()
        self._receive(episode, StepResult({POLICY: Observation(conversation)}))
        seed = self.seed_of(episode, POLICY)
        request = ActionRequest(episode.environment, POLICY, episode.observations[POLICY], seed, episode=episode)
        [[action]] = self.policy.act([request])
        episode.take({POLICY: action})
        return action.text

    def _receive(self, episode: RunningEpisode, result: StepResult) -> None:
        """The program's own observation: what is out of bounds is its mistake."""
        episode.receive(result)
        if episode.error:
            raise InputError(episode.error)

    def _seeds_of_iteration(self) -> np.random.Generator:
        """Draws the seeds that lmgym/environments/groups.py gives an iteration's episodes."""
        return np.random.default_rng([self.config.optimizer.seed, self.state.iteration])


def _stale_weights(rollouts: Any) -> torch.Tensor:
    """Importance weights of the tokens that were sampled before an update of another agent."""
    from ppo.algorithms.losses import sampler_weights
    from ppo.config import CAPS

    lengths = torch.from_numpy(rollouts.reply_lengths)
    mode: Literal["token_truncate"] = "token_truncate"
    return sampler_weights(rollouts.old_logprobs, rollouts.sampler_logprobs, lengths, mode, CAPS[mode])


def _draw(chance: np.random.Generator) -> int:
    return int(chance.integers(2**62, size=1)[0])


def _ready(tokenizer: Any) -> Any:
    """A tokenizer with a chat template. Raises InputError for one without an eos token."""
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no eos token: replies would never end; needed: tokenizer.eos_token = ...")
    ensure_template(tokenizer)
    return tokenizer


def _no_environment() -> Any:
    raise AssertionError("the program steps its environment itself")


def _stop_non_finite(update: int, what: str, rows: list[str]) -> None:
    """Raises RunStopped before the weights change."""
    why = f"update {update + 1}: {what} in {listed(rows)}; the weights are as before it; use a smaller learning_rate"
    raise RunStopped(why, "non_finite", NON_FINITE)
