"""Prompts, sampling, and the engine that samples."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lmgym.config import First, Means, Range, UpTo
from lmgym.errors import MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, MOST_TOKENS

OWN = "vllm"  # the engine that is a server of the run's own
OF_TEXT = {"top_k", "top_p", "repetition_penalty", "stop", "min_length"} | {
    "missing_eos_penalty",
    "mask_truncated",
    "overlong_penalty",
    "overlong_buffer",
}
UNREAD = {"actions": OF_TEXT, "tokens": {"action_scores"}}
"""settings that are not read, by policy_over"""


@dataclass(frozen=True)
class RolloutConfig:
    """Prompts and sampling."""

    prompts: Annotated[str, First(), Means("rows")] = "outputs/world/sft.parquet"
    """file (.jsonl, .jsonl.gz, .parquet, .csv), folder or hub id: `prompt`, or a chat whose last reply is left out;
    several are separated by commas"""
    prompt_weights: Annotated[str | None, Means("weights of the rows")] = None
    """of several data sets: numbers separated by commas, in whose proportion prompts are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all prompts"""
    prompt_split: Annotated[str, Means("split")] = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_prompts: Annotated[str | None, Means("held-out rows")] = None
    """prompts to evaluate on; None: a part of the prompts"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the prompts")] = UpTo(64)
    """without eval_prompts: a share below 1, or a number of prompts; unless it is set, at most a tenth of them"""
    split_by: Annotated[str, Means("unit of the split")] = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value"""
    environment: str | None = None
    """where the policy acts, in place of prompts: SCHEME:NAME, as `lmgym env list` shows, or FILE.py:CLASS, with
    settings behind a question mark: gymnasium:FrozenLake-v1?is_slippery=False"""
    max_turns: Annotated[int, Range(1, MOST_STEPS)] = 1000
    """steps of an environment after which an episode counts as truncated, such as one that never ends"""
    num_rollouts: Annotated[int, First(), Range(1, MOST_TOGETHER)] = 128
    """episodes per iteration, over all ranks"""
    num_generations: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """replies to each prompt: num_rollouts are num_rollouts / num_generations prompts"""
    max_new_tokens: Annotated[int, First()] = 48
    """maximum tokens of a reply"""
    policy_over: Literal["tokens", "actions"] = "tokens"
    """what the policy is a distribution over: all texts, token by token, or the actions that observations list"""
    action_scores: Literal["sum", "token", "word"] = "sum"
    """of an action: the sum of its tokens' log-probabilities, or that divided by its tokens or words; the policy is the
    softmax of the scores over the temperature"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True, hint="a policy must explore")] = 1.0
    """sampling temperature; log-probabilities are computed at it everywhere"""
    top_k: int = 0
    """sample from the k most likely tokens only, 0: all; biases the ratio, as top_p and repetition_penalty do"""
    top_p: float = 1.0
    """sample from the smallest set of tokens whose probabilities sum to p"""
    repetition_penalty: float = 1.0
    """penalty on the logits of tokens that are already in the text"""
    stop: tuple[str, ...] = ()
    """texts, before the first of which a reply ends"""
    max_prompt: Annotated[int, Range(0, MOST_TOKENS, hint="0 is what the context leaves")] = 0
    """maximum tokens of a prompt; 0: what the context leaves beside the reply"""
    long_prompts: Literal["cut", "refuse"] = "cut"
    """drop the oldest turns of longer prompts (counted), or refuse them"""
    generation_batch_size: Annotated[int, Range(1, MOST_TOGETHER)] = 256
    """replies that are sampled together"""
    opponents: str | None = None
    """in games of two players: None, the policy plays both sides; random or another of the game's scripted players; or
    pool:PATH, earlier policies that are saved there"""
    pool_every: Annotated[int, Range(1, MOST_STEPS)] = 10
    """iterations between two policies that are saved to the pool"""
    replay: str | None = None
    """EPISODES.jsonl[:LINE] to play again, in place of training: `lmgym replay` sets it"""


@dataclass(frozen=True)
class EngineConfig:
    """The engine that samples the rollouts, and the iterations that it is ahead of training."""

    engine: str | None = None
    """None: this process; vllm: a server that the run starts and stops; vllm:URL[,URL]: servers that run"""
    engine_memory: Annotated[float, Range(0, 1, above=True, hint="a share of the GPU's memory")] = 0.3
    """share of the GPU's memory for the server that the run starts"""
    engine_sleep: bool = False
    """the server that the run starts gives back the GPU's memory while nothing is sampled"""
    async_rollouts: Annotated[int, Range(0, 1)] = 0
    """iterations that rollouts are sampled ahead: 1, the next ones are sampled while an iteration trains, by the
    weights from before it"""
