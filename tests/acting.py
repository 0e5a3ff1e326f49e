"""A policy that follows a script and a judge with an opinion, which remember what they saw; and a chat for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lmgym.environments.protocol import Observation, Sample, SampleReward, ScoreRequest, StepResult, Task
from lmgym.environments.rollout_engine import Episode, run_episodes
from lmgym.generation.protocol import Completion, Sampling
from lmgym.models.small_models import train_tokenizer
from lmgym.text import Conversation, Turn, tokenize_texts

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
class FakeReward:
    """Gives what a function of the sample says."""

    opinion: Callable[[Sample], SampleReward] = lambda sample: SampleReward(1.0)
    calls: list[list[Sample]] = field(default_factory=list)

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        self.calls.append(list(samples))
        return [self.opinion(sample) for sample in samples]


@dataclass
class Chat:
    """So many turns with one agent; each reply is in the next prompt. Its reward is the number of the turn."""

    turns: int
    truncates: bool = False
    terminates: bool = True
    asks: bool = True
    agent: str = "policy"
    said: list[Turn] = field(default_factory=list)

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        self.said = [Turn("user", f"{task['topic']} {seed}")]
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        self.said.append(Turn("bot", actions[self.agent]))
        number = len(self.said) // 2
        last = number == self.turns
        requests = [ScoreRequest(self.agent, Conversation(tuple(self.said[:-1])), actions[self.agent])]
        self.said.append(Turn("user", f"turn {number}"))
        return StepResult(
            self._shown(),
            {self.agent: float(number)},
            terminated=last and self.terminates,
            truncated=last and self.truncates,
            info={"turns": float(number)},
            score_requests=requests if self.asks else (),
        )

    def _shown(self) -> dict[str, Observation]:
        return {self.agent: Observation(Conversation(tuple(self.said)))}


def play(environments: Sequence, generator=None, reward_function=None, **settings) -> list[Episode]:
    """Each with a topic and a seed of its number."""
    tasks = settings.pop("tasks", [{"topic": f"hello {i}"} for i in range(len(environments))])
    seeds = settings.pop("seeds", list(range(len(environments))))
    sampling = settings.pop("sampling", Sampling(max_new_tokens=16))
    return run_episodes(
        environments,
        tasks,
        seeds,
        generator or Scripted(),
        TOKENIZER,
        sampling,
        reward_function or FakeReward(),
        **settings,
    )
