"""A policy that follows a script, token ids in and out, and a judge with an opinion: both remember what they saw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lmgym.environments.protocol import Judgement, Sample
from lmgym.generation import Completion, Sampling
from lmgym.small_models import train_tokenizer
from lmgym.text import tokenize_texts

TOKENIZER = train_tokenizer(["hello there, how are you? fine thanks. one two three four five six seven"] * 3, 300)


@dataclass
class Scripted:
    """A policy whose reply is a function of (prompt's text, seed)."""

    script: Callable[[str, int], str] = lambda text, seed: "fine"
    max_length: int = 256
    asked: list[list[list[int]]] = field(default_factory=list)
    seeds: list[tuple[int, ...]] = field(default_factory=list)

    def generate(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        assert n == 1
        assert isinstance(sampling.seed, tuple)
        self.asked.append([list(prompt) for prompt in prompts])
        self.seeds.append(sampling.seed)
        return [[self._one(p, seed)] for p, seed in zip(prompts, sampling.seed, strict=True)]

    def _one(self, prompt: list[int], seed: int) -> Completion:
        text = self.script(TOKENIZER.decode(prompt), seed)
        ids = (*tokenize_texts(TOKENIZER, [text])[0], TOKENIZER.eos_token_id)
        return Completion(text, "eos", ids, tuple(-0.5 for _ in ids), len(ids))


@dataclass
class Judges:
    """Gives what a function of the sample says."""

    opinion: Callable[[Sample], Judgement] = lambda sample: Judgement(1.0)
    calls: list[list[Sample]] = field(default_factory=list)

    def judge(self, samples: Sequence[Sample]) -> list[Judgement]:
        self.calls.append(list(samples))
        return [self.opinion(sample) for sample in samples]
