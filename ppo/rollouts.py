"""Rollouts: sampled episodes, stored flat. One row per turn of the policy, one number per sampled token.

Design decisions:
- A row is a prompt as the policy saw it and the ids that it sampled after it, which are never tokenised again. A later
  turn of an episode is a row of its own, with the ids that this turn saw: those of the turn before and what was
  appended, or all rendered anew where the template rewrites history (lmgym/environments/rollout_engine.py).
- Numbers per token (`[M]`) are in the order of rows, and rows in the order of episodes: an episode's tokens are
  contiguous, and advantages are carried from a turn to the one before.
- Of a policy over actions a row is a prompt and the ids of an action, which counts as one sampled token. A forward runs
  the prompt and all that the action was chosen from (`choices`).
- An episode with a failed reward has no loss on any of its tokens.
- Each trained agent has an episode of each game, without rows if it did not act: ranks have equally many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch

from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks
from lmgym.environments.episodes import Episode
from lmgym.environments.groups import Share, groups_of_equal_rewards, share_of_rank
from lmgym.environments.protocol import RewardFunction, Task
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import REWARDS_FAILED, InputError, RunStopped, listed, shown
from lmgym.generation.actions import policy_over
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Choice, Sampling
from lmgym.models.forward.packed_rows import PackedRows, pack_choices
from ppo.config import RewardConfig, RolloutConfig
from ppo.reward_parts import RewardParts, apart, overlong_share
from ppo.row_tree import RowTree
from ppo.task_setups import TaskSetup


def _empty() -> torch.Tensor:
    return torch.zeros(0)


@dataclass
class Rollouts:
    """R rows of E episodes with M sampled tokens. Experience and advantages are filled in later."""

    rows: list[list[int]]
    """token ids of prompt and reply"""
    reply_lengths: np.ndarray
    """[R] int64: sampled tokens, or 1 for an action"""
    episode_of_row: np.ndarray
    """[R] int64"""
    sampler_logprobs: torch.Tensor
    """[M]"""
    scores: torch.Tensor
    """[M]: rewards without the KL, each on the token that earned it"""
    has_reward: np.ndarray
    """[E] bool: the agent acted, and no reward of the episode failed"""
    row_has_loss: np.ndarray
    """[R] bool: no reward of its episode failed, and it is not left out as truncated"""
    group_of_episode: np.ndarray
    """[E] int64: the same for all replies to one prompt, of one agent, on all ranks"""
    staleness: int = 0
    """updates between the weights that sampled and those that are trained"""
    final_rows: list[list[int]] = field(default_factory=list)
    """next prompts of truncated episodes"""
    final_episodes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    old_logprobs: torch.Tensor = field(default_factory=_empty)
    reference_logprobs: torch.Tensor = field(default_factory=_empty)
    values: torch.Tensor = field(default_factory=_empty)
    bootstrap: torch.Tensor = field(default_factory=_empty)
    """[E]: values of truncated episodes' next prompts, 0 for others"""
    advantages: torch.Tensor = field(default_factory=_empty)
    returns: torch.Tensor = field(default_factory=_empty)
    """[M]; zeros without a critic, as are values"""
    correction: torch.Tensor = field(default_factory=_empty)
    """[M]: weights of the sampler's correction"""
    kl_coef: float = 0.0
    """of the KL in the loss"""
    parts: RewardParts | None = None
    """rewards that are normalised within each group before their sum, and are not in `scores`"""
    shared: bool = True
    """a forward runs what rows have in common once"""
    frozen_states: dict[int, torch.Tensor] | None = None
    """[tokens, W] by segment of the tree: output of the frozen layers"""
    choices: list[Choice] | None = None
    """[R] of a policy over actions"""

    @cached_property
    def row_starts(self) -> np.ndarray:
        """[R + 1] int64: index of each row's first token among the M."""
        return np.concatenate([[0], np.cumsum(self.reply_lengths)])

    @cached_property
    def tree(self) -> RowTree:
        """The rows as paths of segments, which those that have them in common share."""
        if self.choices is None:
            return RowTree.of(self.rows, self.reply_lengths.tolist(), self.episode_of_row, self.shared)
        asked = []
        for row, choice in enumerate(self.choices):
            prompt, ids = self.prompt(row), choice.candidates.ids
            asked.append(((tuple(prompt), ids), len(prompt) - 1 + sum(map(len, ids))))
        return RowTree.of_choices(asked, self.episode_of_row)

    def prompt(self, row: int | np.integer) -> list[int]:
        """Ids that the row's action was chosen after."""
        assert self.choices is not None
        choice = self.choices[row]
        return self.rows[row][: -len(choice.candidates.ids[choice.chosen])]

    @cached_property
    def episodes(self) -> int:
        """E."""
        return len(self.has_reward)

    @cached_property
    def mask(self) -> torch.Tensor:
        """[E, T] bool: an episode's sampled tokens, left-aligned."""
        tokens = np.bincount(self.episode_of_row, weights=self.reply_lengths, minlength=self.episodes)
        return torch.from_numpy(np.arange(max(1, int(tokens.max()))) < tokens[:, None])

    @cached_property
    def loss_mask(self) -> torch.Tensor:
        """[M] bool: tokens that have loss."""
        return torch.from_numpy(np.repeat(self.row_has_loss, self.reply_lengths))

    def padded(self, flat: torch.Tensor) -> torch.Tensor:
        """[M] as [E, T]."""
        return flat.new_zeros(self.mask.shape).masked_scatter_(self.mask, flat)

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        """[E, T] as [M]."""
        return padded[self.mask]

    def row_sums(self, flat: torch.Tensor) -> torch.Tensor:
        """[R]: sums of [M] over each row."""
        rows = torch.from_numpy(np.repeat(np.arange(len(self.rows)), self.reply_lengths))
        return flat.new_zeros(len(self.rows)).index_add_(0, rows, flat)

    def token_indices(self, rows: np.ndarray) -> torch.Tensor:
        """Indices among the M of the tokens of these rows, end to end."""
        if not len(rows):
            return torch.zeros(0, dtype=torch.int64)
        lengths = self.reply_lengths[rows]
        offsets = np.repeat(self.row_starts[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        return torch.from_numpy(offsets + np.arange(lengths.sum()))


@dataclass(frozen=True)
class RowBatch:
    """Packed rows on the device. An empty batch holds the first row as a stand-in; its results are to be ignored."""

    indices: np.ndarray
    """rows among the rollouts' rows, in the order in which they are read"""
    segments: list[int]
    """of the rollouts' tree, in the order of the packed tokens"""
    rows: PackedRows
    targets: torch.Tensor
    """ids of the sampled tokens, or of all candidates, end to end"""
    tokens: torch.Tensor
    """their indices among the M, on the CPU"""

    @staticmethod
    def of(rollouts: Rollouts, rows: np.ndarray, device: torch.device) -> "RowBatch":
        indices = rows if len(rows) else np.zeros(1, dtype=np.int64)
        if rollouts.choices is None:
            packed, indices, segments = rollouts.tree.pack(indices, rollouts.reply_lengths)
            lengths = rollouts.reply_lengths
            targets = torch.tensor([id_ for i in indices for id_ in rollouts.rows[i][-int(lengths[i]) :]])
        else:
            choices = [rollouts.choices[i] for i in indices]
            given = [(c.candidates.ids, c.candidates.divisors, c.chosen) for c in choices]
            packed, targets = pack_choices([rollouts.prompt(i) for i in indices], *zip(*given, strict=True))
            segments = list(dict.fromkeys(rollouts.tree.parents[indices].tolist()))
        targets = targets.to(device, non_blocking=True)
        return RowBatch(indices, segments, packed.to(device), targets, rollouts.token_indices(indices))


def play_tasks(
    setup: TaskSetup,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    generator: LocalGenerator,
    tokenizer,
    sampling: Sampling,
    settings: RolloutConfig,
    reward_function: RewardFunction | None = None,
    members: Sequence[int] | None = None,
    alone: bool = False,
) -> list[Episode]:
    """Play one episode per task. Collective, so that an InputError or ServerError of one rank is raised on all, unless
    this rank plays `alone`, as a thread must.
    """
    environments = [setup.new_environment() for _ in tasks]
    policy = policy_over(settings.policy_over, generator, settings.action_scores)
    given = environments, tasks, seeds, policy, tokenizer, sampling, reward_function or setup.reward_function
    limits = settings.max_prompt or None, settings.long_prompts
    play = partial(run_episodes, *given, setup.players, *limits, members, most_steps=settings.max_turns)
    return play() if alone else raise_on_all_ranks(play)


@dataclass
class Played:
    """This rank's episodes of an iteration."""

    episodes: list[Episode]
    share: Share
    refilled: int = 0
    """groups of all ranks that were played again"""
    updates: int = 0
    """of the run, before the weights that sampled"""
    texts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """shares of the texts that scorers saw cut: sums and counts"""


def roll_out(
    setup: TaskSetup,
    generator: LocalGenerator,
    tokenizer,
    sampling: Sampling,
    settings: RolloutConfig,
    share: Callable[[int], Share],
    max_refills: int = 0,
    reward_function: RewardFunction | None = None,
    alone: bool = False,
) -> Played:
    """This rank's share of an iteration, played. Collective, unless it is played `alone`, which allows no refills.

    Groups whose rewards are all equal are played again with other tasks, at most `max_refills` times (dynamic sampling,
    Yu et al. 2025, section 3.2): those of `share` of 1, 2, ...; of 0 it has the iteration's own.
    """

    def play_all(chosen: Share) -> list[Episode]:
        given = setup, chosen.tasks, chosen.seeds, generator, tokenizer, sampling, settings, reward_function
        return play_tasks(*given, chosen.members, alone)

    own = share(0)
    played = Played(play_all(own), own)
    for refill in range(1, max_refills + 1):
        dull = groups_of_equal_rewards(played.episodes, own.groups)
        if not dull:
            break
        others = share(refill)
        places = [place for place, group in enumerate(own.groups) if group in dull]
        again = [replace(e, index=places[e.index]) for e in play_all(others.only(places))]
        kept = [episode for episode in played.episodes if own.groups[episode.index] not in dull]
        played.episodes = sorted([*kept, *again], key=lambda episode: episode.index)
        for place in places:
            own.tasks[place] = others.tasks[place]
        played.refilled += len(dull)
    return played


def share_of_iteration(
    setup: TaskSetup, num_rollouts: int, num_generations: int, seed: int, iteration: int, refill: int = 0
) -> Share:
    """This rank's tasks of an iteration, or others with `refill`: see `share_of_rank`."""
    return share_of_rank(setup.tasks, num_rollouts, num_generations, iteration, seed, refill, setup.together)


def complete(episodes: Sequence[Episode], games: int, trained_agents: int) -> list[Episode]:
    """An episode for each trained agent of each of this rank's games; one without steps for an agent that did not act.

    A game that ended early may never have asked an agent. If no trained agent acted on this rank, the first episode
    borrows a step of another rank. Raises InputError, on all ranks, if more agents act in a game than are trained, and
    RunStopped if none acted on any rank. Collective.
    """
    by_game: list[list[Episode]] = [[] for _ in range(games)]
    for episode in episodes:
        by_game[episode.index].append(episode)
    most = max((len(found) for found in by_game), default=0)
    acting = {episode.agent for episode in episodes if episode.steps}
    errors = [episode.error for episode in episodes if episode.error]
    steps = [step for episode in episodes for step in episode.steps[:1]]
    ranks = all_gather_objects((most, acting, errors[:1], steps[:1]))
    names = sorted(set().union(*(of_rank[1] for of_rank in ranks)))
    if (most := max(of_rank[0] for of_rank in ranks)) > trained_agents:
        raise InputError(
            f"{most} agents of a game are the policy ({listed(names)}), and trained_agents={trained_agents}; needed: "
            f"TaskSetup(trained_agents={most}), or `players` for the agents that are not trained"
        )
    if games and not names:
        why = next((error for of_rank in ranks for error in of_rank[2]), "no game asked a trained agent")
        raise RunStopped(f"an iteration has no reply of the policy: {why}", "rewards_failed", REWARDS_FAILED)
    names += [f"agent {number + 1}" for number in range(len(names), trained_agents)]  # that act in no game
    found = [e for game, own in enumerate(by_game) for e in _with_absent(game, own, names, trained_agents)]
    if games and not acting:
        borrowed = next(step for of_rank in ranks for step in of_rank[3])
        found[0] = replace(found[0], steps=[replace(borrowed, reward=None, borrowed=True)])
    return found


def _with_absent(game: int, found: Sequence[Episode], names: Sequence[str], trained_agents: int) -> list[Episode]:
    """The episodes of a game with those of absent agents; if none acted, as the game failed, all have its error."""
    acted = [episode for episode in found if episode.steps]
    first = found[0] if found else Episode(game, "", [], True, False, None, {})
    others = [name for name in names if name not in {episode.agent for episode in acted}]
    absent = replace(first, steps=[], final_prompt=None, error="" if acted else first.error)
    return [*acted, *(replace(absent, agent=name) for name in others[: trained_agents - len(acted)])]


def refuse_idle_agents(episodes: Sequence[Episode], setup: TaskSetup) -> None:
    """Raises InputError, on all ranks, for agents that act in none of the games: most likely a name is misspelt.

    Agents are known by a reward, by `players`, and by the number `trained_agents`. Collective.
    """
    said = {agent for episode in episodes for actions in episode.actions for agent in actions}
    trained = {episode.agent for episode in episodes if episode.acted}
    rewarded = {agent for episode in episodes for agent in episode.unclaimed}
    ranks = all_gather_objects((said, trained, rewarded))
    said, trained, rewarded = (set().union(*found) for found in zip(*ranks, strict=True))
    if idle := sorted((rewarded | setup.players.keys()) - said):
        whose = "has a reward" if idle[0] in rewarded else "is one of `players`"
        raise InputError(
            f"the agent {shown(idle[0])} {whose} and acts in no game of the first iteration, where "
            f"{listed(sorted(said))} act; needed: one of these names, or a larger --num_rollouts if it acts rarely"
        )
    if len(trained) < setup.trained_agents:
        raise InputError(
            f"trained_agents={setup.trained_agents}, and in the first iteration only {listed(sorted(trained))} acted; "
            f"needed: TaskSetup(trained_agents={len(trained)}), or a larger --num_rollouts if the other acts rarely"
        )


def gather(
    episodes: Sequence[Episode],
    settings: RewardConfig,
    staleness: int = 0,
    groups: np.ndarray | None = None,
    weights: Mapping[str, float] | None = None,
    overlong_penalty: float = 0.0,
    max_new_tokens: int = 0,
) -> Rollouts:
    """Rollouts of episodes, in their order. A single reward goes to the reply's last token, dense ones to each token.

    Rewards are clipped, reduced by the penalties where a reply is long or reached the token limit, and scaled. `groups`
    [E] number the episodes' groups; None: each has one of its own. `weights` are of the rewards that are kept apart, to
    be normalised one by one: `scores` are the others. `overlong_penalty` is that of a reply of `max_new_tokens`.
    """
    parts, episodes = (None, episodes) if weights is None else apart(episodes, weights, settings.scale)
    steps = [(e, step) for e, episode in enumerate(episodes) for step in episode.steps]
    choices = [step.completion.choice for _, step in steps if step.completion.choice is not None]
    lengths = np.array([1 if choices else len(step.completion.ids) for _, step in steps], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    scores = np.zeros(int(starts[-1]), dtype=np.float64)
    for i, (_, step) in enumerate(steps):
        if isinstance(step.reward, tuple):
            scores[starts[i] : starts[i + 1]] = sum(step.reward) if choices else step.reward
        elif step.reward is not None:
            scores[starts[i + 1] - 1] = step.reward
    if settings.cliprange_reward is not None:
        np.clip(scores, -settings.cliprange_reward, settings.cliprange_reward, out=scores)
    truncated = np.array([step.completion.finish_reason == "length" for _, step in steps], dtype=bool)
    scores[starts[1:][truncated] - 1] -= settings.missing_eos_penalty
    if overlong_penalty > 0:
        share = overlong_share(lengths, max_new_tokens, settings.overlong_buffer)
        scores[starts[1:] - 1] -= overlong_penalty * share
    scores *= settings.scale
    has_reward = np.array([e.total_reward is not None for e in episodes], dtype=bool)
    episode_of_row = np.array([e for e, _ in steps], dtype=np.int64)
    finals = [(e, episode.final_prompt) for e, episode in enumerate(episodes) if episode.final_prompt]
    return Rollouts(
        rows=[[*step.prompt, *step.completion.ids] for _, step in steps],
        reply_lengths=lengths,
        episode_of_row=episode_of_row,
        sampler_logprobs=torch.tensor([x for _, step in steps for x in step.completion.logprobs], dtype=torch.float32),
        scores=torch.from_numpy(scores).float(),
        has_reward=has_reward,
        row_has_loss=has_reward[episode_of_row] & ~(truncated & settings.mask_truncated),
        group_of_episode=np.arange(len(episodes)) if groups is None else groups,
        values=torch.zeros(int(starts[-1])),
        returns=torch.zeros(int(starts[-1])),
        correction=torch.ones(int(starts[-1])),
        staleness=staleness,
        final_rows=[list(ids) for _, ids in finals],
        final_episodes=np.array([e for e, _ in finals], dtype=np.int64),
        choices=choices or None,
        parts=parts,
    )


def minibatches(episodes: int, batch: int, rank: int, ranks: int, seed: Sequence[int]) -> list[np.ndarray]:
    """A random order of a rank's episodes, `batch / ranks` at a time.

    Episode i of rank r is number i * ranks + r of all. Each number modulo `batch` occurs once in a minibatch, so that
    minibatches hold the same episodes however many ranks share them.
    """
    columns, slots = batch // ranks, episodes * ranks // batch
    orders = np.stack(
        [np.random.default_rng([*seed, column * ranks + rank]).permutation(slots) for column in range(columns)]
    )
    return [orders[:, slot] * columns + np.arange(columns) for slot in range(slots)]
