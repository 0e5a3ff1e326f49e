"""Choices among listed actions by a local model: one forward scores all candidates, and nothing else can be said.

Design decisions:
- A candidate is the text that the template writes for that reply, as token ids behind the prompt's
  (lmgym/data/tokenization.py), and the eos token. So one action may begin with another; those of equal tokens could
  not be told apart, and are refused.
- The policy is the softmax that training computes (lmgym/models/forward/choices.py). It is sampled with the noise of a
  reply's first token, so that the rest of the batch changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, final

import torch

from lmgym.data.batching import length_batches
from lmgym.data.thoughts import filled
from lmgym.data.tokenization import ACROSS, NO_PROMPT_PREFIX, tokenize, tokenize_behind
from lmgym.errors import InputError, shown
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Candidates, Choice, Completion, Sampling, seeds_of
from lmgym.generation.token_sampling import row_seeds, sample_tokens, uniforms
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import pack_choices
from lmgym.text import Conversation, render_all, tokenize_texts
from lmgym.turn_ends import turn_ends

ActionScores = Literal["sum", "token", "word"]
TOKENS_AT_ONCE = 8192


def read_candidates(
    tokenizer,
    prompts: Sequence[Conversation | str],
    actions: Sequence[Sequence[str]],
    most: int,
    scores: ActionScores = "sum",
) -> list[Candidates | str]:
    """The actions listed with each prompt, of at most `most` tokens with their eos; a string says why they are refused.

    The divisor of a score is 1, the candidate's tokens with its eos, or its words.
    """
    found: list[Candidates | str] = []
    for prompt, texts in zip(prompts, actions, strict=True):
        ids = _unusable(texts) or _ids_of(tokenizer, prompt, texts)
        if isinstance(ids, str):
            found.append(ids)
            continue
        candidates = [(*one, turn_ends(tokenizer).ids[0]) for one in ids]
        divisors = {
            "sum": [1.0] * len(texts),
            "token": [float(len(one)) for one in candidates],
            "word": [float(len(text.split())) for text in texts],
        }
        refused = _refused(tokenizer, texts, candidates, most)
        found.append(refused or Candidates(tuple(texts), tuple(candidates), tuple(divisors[scores])))
    return found


def accepted(read: Sequence[Candidates | str], whose: Callable[[int], str]) -> list[Candidates]:
    """The candidates of `read_candidates`. Raises InputError for the first refusal, named by `whose`."""
    for number, found in enumerate(read):
        if isinstance(found, str):
            raise InputError(f"{whose(number)} {found}")
    return [found for found in read if not isinstance(found, str)]


def _unusable(actions: Sequence[str]) -> str:
    """Why this is no list of actions; empty if it is."""
    if isinstance(actions, str) or not actions or not all(isinstance(action, str) for action in actions):
        listed = shown(actions) if actions else "no actions"
        return f"lists {listed}; needed: the texts of all legal actions, as Observation(prompt, ('hit', 'stick'))"
    blank = [action for action in actions if not action.strip()]
    return f"lists {blank[0]!r}, an empty action; needed: text, as 'wait' or 'pass'" if blank else ""


def _ids_of(tokenizer, prompt: Conversation | str, actions: Sequence[str]) -> list[list[int]] | str:
    """The ids of each action behind the prompt, up to an eos, or why there are none."""
    if isinstance(prompt, str):
        try:
            [before, *wholes] = tokenize_texts(tokenizer, [prompt, *(prompt + action for action in actions)])
        except Exception:  # a tokenizer of whole words that knows none of them joined
            return tokenize_texts(tokenizer, list(actions))
        rests = [
            whole[len(before) :] if whole[: len(before)] == before else tokenize_behind(tokenizer, before, action)
            for whole, action in zip(wholes, actions, strict=True)
        ]
        return ACROSS if None in rests else [rest for rest in rests if rest is not None]
    [chat] = tokenize(tokenizer, [(prompt, tuple(filled(tokenizer, action) for action in actions))])
    if isinstance(chat, str) or not chat.has_prompt:
        return chat if isinstance(chat, str) else NO_PROMPT_PREFIX
    return [turn_ends(tokenizer).body(rest) for rest in chat.rests]


def _refused(tokenizer, texts: Sequence[str], candidates: Sequence[tuple[int, ...]], most: int) -> str:
    """Why these candidates cannot be chosen from; empty if they can."""
    known: dict[tuple[int, ...], str] = {}
    ends = turn_ends(tokenizer)
    for text, ids in zip(texts, candidates, strict=True):
        if len(ids) == 1:
            return f"lists {shown(text)}, which has no token; needed: text that the tokenizer can write"
        if len(ends.body(list(ids))) < len(ids) - 1 or ends.token_in(text):
            token = ends.token_in(text) or ends.tokens[0]
            return f"lists {shown(text)}, which holds {token}, the end of a reply; needed: text without it"
        if len(ids) > most:
            return (
                f"lists {shown(text)}, of {len(ids)} tokens with its end; needed: at most {most}, or a larger "
                "--max_new_tokens"
            )
        if ids in known:
            return f"lists {shown(known[ids])} and {shown(text)}, whose tokens are equal; needed: each action once"
        known[ids] = text
    return ""


@final
class ActionPolicy:
    """A policy over the actions that observations list, by the weights of a generator."""

    def __init__(self, generator: LocalGenerator, scores: ActionScores = "sum") -> None:
        self.generator, self.scores = generator, scores

    @property
    def max_length(self) -> int:
        """Most tokens of a prompt and a candidate together."""
        return self.generator.max_length

    def choose(
        self, prompts: Sequence[list[int]], candidates: Sequence[Candidates], sampling: Sampling
    ) -> list[list[Completion]]:
        """One completion of each prompt of token ids: an action. Of the sampling, temperature and seed are used."""
        noise = torch.from_numpy(uniforms(row_seeds(seeds_of(sampling, len(prompts)), 1), 0))
        neutral = replace(sampling, top_k=0, top_p=1.0, repetition_penalty=1.0)
        scores = self._scores(prompts, candidates)
        chosen, logprobs = sample_tokens(scores, scores, neutral, noise)
        of_candidates = (scores / (sampling.temperature or 1.0)).log_softmax(-1)
        entropies = -(of_candidates.exp() * of_candidates.clamp(min=-1e9)).sum(-1)
        found = zip(candidates, chosen.tolist(), logprobs.tolist(), entropies.tolist(), strict=True)
        return [
            [
                Completion(
                    own.texts[number],
                    "eos",
                    own.ids[number],
                    (logprob,),
                    len(own.ids[number]),
                    Choice(own, number, entropy),
                )
            ]
            for own, number, logprob, entropy in found
        ]

    def pick(
        self, prompts: Sequence[Conversation], actions: Sequence[Sequence[str]], sampling: Sampling
    ) -> list[list[Completion]]:
        """One completion of each prompt: one of its listed actions. Raises InputError for a list that cannot be chosen
        from, and a prompt that is too long.
        """
        tokenizer = self.generator.tokenizer
        read = read_candidates(tokenizer, prompts, actions, sampling.max_new_tokens, self.scores)
        candidates = accepted(read, lambda number: "--policy_over actions: an observation")
        rows = tokenize_texts(tokenizer, render_all(tokenizer, prompts))
        self.generator.check(rows, 1, sampling)
        return self.choose(rows, candidates, sampling)

    @torch.inference_mode()
    def _scores(self, prompts: Sequence[list[int]], candidates: Sequence[Candidates]) -> torch.Tensor:
        """[prompts, K] fp32 on the CPU; -inf where there is no candidate. Equal requests are computed once."""
        decoder, dtype = self.generator.decoder, self.generator.autocast
        self.generator.model.eval()
        requests = list(zip(map(tuple, prompts), candidates, strict=True))
        distinct = {request: number for number, request in enumerate(dict.fromkeys(requests))}
        given = [(prompt, own.ids, own.divisors, 0) for prompt, own in distinct]
        table = torch.full((len(given), max(len(ids) for _, ids, _, _ in given)), -torch.inf)
        sizes = [len(prompt) + sum(map(len, ids)) for prompt, ids, _, _ in given]
        for batch in length_batches(sizes, TOKENS_AT_ONCE):
            rows, targets = pack_choices(*zip(*(given[i] for i in batch), strict=True))
            rows, targets = rows.to(decoder.device), targets.to(decoder.device)
            with torch.autocast(decoder.device.type, dtype, enabled=dtype is not None):
                logprobs = token_logprobs(decoder, decoder.hidden(rows), targets)
            assert rows.choices is not None
            found = rows.choices.scores(logprobs).cpu()
            table[batch, : found.shape[1]] = found
        return table[[distinct[request] for request in requests]]


def policy_over(over: str, generator: LocalGenerator, scores: ActionScores = "sum") -> LocalGenerator | ActionPolicy:
    """The policy over "tokens", the generator itself, or over "actions"."""
    return ActionPolicy(generator, scores) if over == "actions" else generator
