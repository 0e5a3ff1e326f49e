"""Later turns: a prompt begins with the ids that were read and sampled before, and only what follows is tokenised."""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from acting import TOKENIZER, Chat, FakeReward
from chat_kinds import CROSSING, DECODERS, Kind, random_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from lmgym.data.tokenization import tokenize
from lmgym.environments.episodes import Episode, RunningEpisode, Step
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.environments.rollout_engine import run_episodes
from lmgym.generation import prompt_fitting
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.prompt_fitting import Said, fit_prompts
from lmgym.generation.protocol import Completion, FinishReason, Sampling, ScriptedGenerator
from lmgym.models.loading import load_tokenizer
from lmgym.templates import FLAT_TEMPLATE
from lmgym.text import Conversation, Turn, ensure_template, render_all, tokenize_texts

LETTERS = tuple(tokenize_texts(TOKENIZER, [c])[0][0] for c in "hello")
EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id
WITH_EOS = (
    r"{%- for turn in messages -%}{{ turn.role + ': ' + turn.content + eos_token + '\n' }}{%- endfor -%}"
    r"{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"
)
FORGETS_THOUGHTS = WITH_EOS.replace("turn.content", "turn.content.split('</think>')[-1]")


def ids_of(text: str, tokenizer=TOKENIZER) -> list[int]:
    return tokenize_texts(tokenizer, [text])[0]


def with_template(template: str):
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = template
    return tokenizer


@dataclass
class Samples:
    """A policy that samples the same ids at every turn."""

    ids: Sequence[int]
    reason: FinishReason = "eos"
    tokenizer: PreTrainedTokenizerFast = TOKENIZER
    text: str = ""
    """of a reply that ends before a stop string"""
    max_length: int = 4096

    def generate(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        body = self.ids[:-1] if self.reason == "eos" else self.ids
        text = self.text or self.tokenizer.decode(body, skip_special_tokens=True)
        return [[Completion(text, self.reason, tuple(self.ids), (-1.0,) * len(self.ids))] for _ in prompts]


def played(environment, policy, tokenizer=TOKENIZER, **settings) -> list[Episode]:
    given = [{"topic": "a"}], [7], policy, tokenizer, Sampling(max_new_tokens=16), FakeReward()
    return run_episodes([environment], *given, **settings)


def steps_of(policy: Samples, turns: int = 3, chat: Callable[[int], Chat] = Chat):
    [episode] = played(chat(turns), policy, policy.tokenizer)
    return episode.steps


def test_a_later_prompt_is_the_last_one_the_sampled_ids_and_what_was_added() -> None:
    assert list(LETTERS) != ids_of("hello"), "another way to the same text"
    for reason, sampled in (("length", LETTERS), ("eos", (*LETTERS, EOS))):
        first, second, third = steps_of(Samples(sampled, reason))
        assert (first.prompt, first.appended) == (ids_of("User: a 7\nBot:"), False)
        assert second.prompt == [*first.prompt, *LETTERS, *ids_of("\nUser: turn 1\nBot:")], "without an eos in between"
        assert third.prompt == [*second.prompt, *LETTERS, *ids_of("\nUser: turn 2\nBot:")]
        assert second.appended
        assert third.appended
        assert second.prompt_text == "User: a 7\nBot: hello\nUser: turn 1\nBot:"


def test_an_eos_that_the_template_writes_too_is_there_once() -> None:
    tokenizer = with_template(WITH_EOS)
    first, second, third = steps_of(Samples((*LETTERS, EOS), tokenizer=tokenizer))
    added = "\nuser: turn {}" + tokenizer.eos_token + "\nassistant: "
    assert second.prompt == [*first.prompt, *LETTERS, EOS, *ids_of(added.format(1))]
    assert third.prompt == [*second.prompt, *LETTERS, EOS, *ids_of(added.format(2))]
    assert tokenizer.decode(third.prompt) == third.prompt_text


def test_a_reply_that_reached_the_limit_gets_the_templates_end() -> None:
    tokenizer = with_template(WITH_EOS)
    first, second, _ = steps_of(Samples(LETTERS, "length", tokenizer))
    assert second.prompt[: len(first.prompt) + 6] == [*first.prompt, *LETTERS, EOS]
    assert tokenizer.decode(second.prompt) == second.prompt_text


@pytest.mark.parametrize("template", [WITH_EOS, FLAT_TEMPLATE])
@pytest.mark.parametrize("around", [(" ", ""), ("\n\n", "  "), ("", "\n")])
def test_white_space_around_a_reply_stays_as_it_was_sampled(template: str, around: tuple[str, str]) -> None:
    class Strips(Chat):
        def step(self, actions):
            return super().step({agent: said.strip() for agent, said in actions.items()})

    before, behind = map(ids_of, around)
    tokenizer = with_template(template)
    sampled = [*before, *LETTERS, *behind, EOS]
    first, second, third = steps_of(Samples(sampled, tokenizer=tokenizer), chat=Strips)
    for earlier, later in ((first, second), (second, third)):
        assert later.appended
        kept = sampled if template == WITH_EOS else sampled[:-1]
        assert later.prompt[: len(earlier.prompt) + len(kept)] == [*earlier.prompt, *kept]
        assert "".join(tokenizer.decode(later.prompt).split()) == "".join(later.prompt_text.split())
    if around == ("", "\n") and template == FLAT_TEMPLATE:
        assert "hello\nUser" in tokenizer.decode(second.prompt), "the template's own line break is not added again"


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_reply_without_text_keeps_its_ids(blank: str) -> None:
    tokenizer = with_template(WITH_EOS)
    sampled = [*ids_of(blank), EOS]
    first, second, _ = steps_of(Samples(sampled, tokenizer=tokenizer))
    assert second.prompt[: len(first.prompt) + len(sampled)] == [*first.prompt, *sampled]
    assert second.appended
    first, second, _ = steps_of(Samples(sampled))
    assert second.prompt == ids_of(second.prompt_text), "nothing says where the blank would be"


def test_a_stop_string_that_follows_in_the_text_is_not_doubled() -> None:
    stop = ids_of("\nUser")
    first, second, _ = steps_of(Samples([*LETTERS, *stop], "stop", text="hello"))
    assert second.prompt == [*first.prompt, *LETTERS, *stop, *ids_of(": turn 1\nBot:")]
    for step in steps_of(Samples([*LETTERS, *ids_of("###")], "stop", text="hello"))[1:]:
        assert (step.prompt, step.appended) == (ids_of(step.prompt_text), False), "it is not in the text"


def test_a_reply_that_ended_by_another_mark_than_the_templates_is_rendered_anew() -> None:
    tokenizer = with_template(WITH_EOS)
    for step in steps_of(Samples([*LETTERS, PAD], tokenizer=tokenizer))[1:]:
        assert (step.prompt, step.appended) == (ids_of(step.prompt_text), False)


def test_a_template_that_rewrites_history_is_rendered_anew() -> None:
    tokenizer = with_template(FORGETS_THOUGHTS)
    thinks = [*ids_of("<think>one</think>"), *LETTERS, EOS]
    first, second, _ = steps_of(Samples(thinks, tokenizer=tokenizer))
    assert (second.prompt, second.appended) == (ids_of(second.prompt_text), False)
    assert "one" not in second.prompt_text
    first, second, _ = steps_of(Samples([*LETTERS, EOS], tokenizer=tokenizer))
    assert second.prompt[: len(first.prompt) + 6] == [*first.prompt, *LETTERS, EOS], "where nothing is rewritten"


def test_an_environment_that_changes_history_is_rendered_anew() -> None:
    class Shouts(Chat):
        def step(self, actions):
            return super().step({agent: said.upper() for agent, said in actions.items()})

    class Hides(Chat):
        def _shown(self):
            return {self.agent: Observation(Conversation(tuple(self.said[-1:])))}

    for chat in (Shouts, Hides):
        for step in steps_of(Samples([*LETTERS, EOS]), chat=chat):
            assert (step.prompt, step.appended) == (ids_of(step.prompt_text), False)


def test_prompts_that_are_too_long_lose_turns_and_are_rendered_anew() -> None:
    [episode] = played(Chat(5), Samples([*LETTERS, EOS]), max_prompt=48)
    appended = [step.appended for step in episode.steps]
    assert appended == [False, True, False, False, False]
    for step, fits in zip(episode.steps, appended, strict=True):
        assert len(step.prompt) <= 48
        assert fits or step.prompt == ids_of(step.prompt_text)
        assert step.dropped_turns == 0 or not step.appended
    assert [step.dropped_turns > 0 for step in episode.steps] == [False, False, True, True, True]


class Log(Chat):
    """A text that grows by what is said and what happens."""

    def _shown(self):
        return {self.agent: Observation("log:" + "".join(turn.text for turn in self.said))}


class Bare(Chat):
    """The turns' numbers, without what was said."""

    def _shown(self):
        return {self.agent: Observation(f"turn {len(self.said)}")}


def test_texts_that_go_on_with_the_reply_are_continued_and_others_are_not() -> None:
    first, second, third = steps_of(Samples([*LETTERS, EOS]), chat=Log)
    assert second.prompt == [*first.prompt, *LETTERS, *ids_of("turn 1")]
    assert third.prompt == [*second.prompt, *LETTERS, *ids_of("turn 2")]
    for step in steps_of(Samples([*LETTERS, EOS]), chat=Bare):
        assert (step.prompt, step.appended) == (ids_of(step.prompt_text), False)


def test_a_text_that_fits_only_as_the_tokenizer_writes_it_is_not_cut() -> None:
    whole = ids_of("log:a 7helloturn 1")
    [episode] = played(Log(2), Samples([*LETTERS, EOS]), max_prompt=len(whole))
    second = episode.steps[1]
    assert (second.prompt, second.shortened, second.appended) == (whole, 0, False)


@pytest.mark.parametrize("lost", [{"dropped_turns": 1}, {"shortened": 2}])
def test_nothing_is_appended_to_a_prompt_that_was_cut(lost: dict[str, int]) -> None:
    step = Step([1, 2], "text", Completion("hello", "eos", (3, EOS)))
    for last, found in ((step, [1, 2]), (replace(step, **lost), None)):
        said = RunningEpisode(0, 0, Chat(1), steps={"policy": [last]}).last_said("policy")
        assert (said and said.prompt) == found
    assert RunningEpisode(0, 0, Chat(1)).last_said("policy") is None


@cache
def spaced(scheme: str) -> PreTrainedTokenizerFast:
    """A tokenizer that begins texts, or what follows each mark, with a space; "ab" and " turn" are tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    texts = ["User: abab turn 1 log: Bot: ab hello</s>\n 0 1 2 3 4 5 6 7 8 9 a b"] * 4
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["<pad>", "</s>"], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    ensure_template(tokenizer)
    return tokenizer


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize("template", [WITH_EOS, FLAT_TEMPLATE])
def test_no_space_is_added_where_a_tokenizer_begins_texts_with_one(scheme: str, template: str) -> None:
    tokenizer = copy.deepcopy(spaced(scheme))
    tokenizer.chat_template = template
    sampled = [tokenizer.convert_tokens_to_ids(c) for c in ("▁", "a", "b")]
    assert tokenizer.convert_tokens_to_ids("▁ab") not in (None, tokenizer.unk_token_id), "what it is tokenised to"
    for policy in (
        Samples(sampled, "length", tokenizer),
        Samples([*sampled, tokenizer.eos_token_id], "eos", tokenizer),
    ):
        first, second, third = steps_of(policy)
        assert [step.appended for step in (first, second, third)] == [False, True, True]
        assert second.prompt[: len(first.prompt) + 3] == [*first.prompt, *sampled]
        whole = ids_of(third.prompt_text, tokenizer)
        unspaced = "".join(tokenizer.decode(whole).split(" "))
        assert "".join(tokenizer.decode(third.prompt).split(" ")) == unspaced
        assert tokenizer.decode(third.prompt[len(first.prompt) :]).count("▁") == 0
        added = third.prompt[-len(ids_of("User: turn 2\n", tokenizer)) :]
        assert added == whole[-len(added) :], "as it is tokenised within the whole"


def test_a_token_that_would_span_reply_and_addition_is_parted() -> None:
    class Joined(Log):
        def _shown(self):
            return {self.agent: Observation("log: " + "".join(turn.text for turn in self.said).replace("turn ", "b"))}

    for scheme in ("always", "first"):
        tokenizer = spaced(scheme)
        a, b = (tokenizer.convert_tokens_to_ids(c) for c in "ab")
        first, second, _ = steps_of(Samples([a], "length", tokenizer), chat=Joined)
        assert second.prompt_text.endswith("7ab1")
        assert second.prompt == [*first.prompt, a, b, tokenizer.convert_tokens_to_ids("1")]
        assert second.prompt != ids_of(second.prompt_text, tokenizer)


class Pair:
    """Two agents in turn; each sees its own words as the bot's."""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        self.said: list[tuple[str, str]] = [("", "begin")]
        return self._shown("left")

    def step(self, actions: Mapping[str, str]) -> StepResult:
        [(agent, text)] = actions.items()
        self.said.append((agent, text))
        shown = self._shown("right" if agent == "left" else "left")
        return StepResult(shown, truncated=len(self.said) == 6)

    def _shown(self, agent: str) -> dict[str, Observation]:
        turns = [Turn("bot" if who == agent else "user", text) for who, text in self.said]
        return {agent: Observation(Conversation(tuple(turns)))}


def test_each_agent_continues_its_own_prompts_and_players_that_are_not_trained_change_nothing() -> None:
    tokenizer = with_template(WITH_EOS)
    policy = Samples([*LETTERS, EOS], tokenizer=tokenizer)
    scripted = {"right": ScriptedGenerator(["hello"])}
    both, alone = played(Pair(), policy, tokenizer), played(Pair(), policy, tokenizer, others=scripted)
    assert [(e.agent, len(e.steps)) for e in both] == [("left", 3), ("right", 2)]
    assert [step.prompt for step in alone[0].steps] == [step.prompt for step in both[0].steps]
    for episode in both:
        for earlier, later in zip(episode.steps, episode.steps[1:], strict=False):
            assert later.appended
            assert later.prompt[: len(earlier.prompt) + 6] == [*earlier.prompt, *LETTERS, EOS]
    last = both[1].steps[-1]
    assert both[1].final_prompt is not None
    assert both[1].final_prompt[: len(last.prompt) + 6] == [*last.prompt, *LETTERS, EOS]


def test_after_a_replay_the_first_prompt_is_rendered_and_the_next_appended() -> None:
    policy = Samples([*LETTERS, EOS])
    [whole] = played(Chat(4), policy)
    [fork] = played(Chat(4), policy, beginnings=[whole.actions[:2]])
    first, second = fork.steps
    assert (first.prompt, first.appended) == (ids_of(first.prompt_text), False)
    assert second.prompt == [*first.prompt, *LETTERS, *ids_of("\nUser: turn 3\nBot:")]


def test_a_game_that_began_anew_is_rendered_anew() -> None:
    class Restarts(Chat):
        def step(self, actions):
            result = super().step(actions)
            return StepResult(result.observations, {}, result.terminated, restarted=len(self.said) == 3)

    assert [step.appended for step in steps_of(Samples([*LETTERS, EOS]), 4, Restarts)] == [False, True, True]


def test_only_what_was_added_is_tokenised(monkeypatch) -> None:
    sizes: list[int] = []

    def counted(tokenizer, texts: list[str]) -> list[list[int]]:
        sizes.append(sum(map(len, texts)))
        return tokenize_texts(tokenizer, texts)

    monkeypatch.setattr(prompt_fitting, "tokenize_texts", counted)
    steps = steps_of(Samples([*LETTERS, EOS]), turns=50)
    assert all(step.appended for step in steps[1:])
    assert len(steps[-1].prompt_text) > 1000
    assert max(sizes) < 200


def test_a_local_generator_reads_only_what_was_added(small_models: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).eval()
    policy = LocalGenerator(model, load_tokenizer(str(small_models["llama"])))
    [episode] = played(Chat(4), policy, policy.tokenizer)
    assert [step.appended for step in episode.steps] == [False, True, True, True]
    assert policy.prefix.computed == len(episode.steps[-1].prompt), "each prompt begins with all of the one before"


@dataclass
class Talk:
    """A conversation by one kind of tokenizer, whose replies are sampled as it tokenises them behind the prompt."""

    kind: Kind
    rng: random.Random
    turns: list[Turn] = field(default_factory=list)

    def ask(self) -> Conversation:
        self.turns.append(Turn("user", self._text()))
        return Conversation(tuple(self.turns))

    def reply(self, prompt: list[int], text: str, end: int) -> Said:
        said = self._text()
        [chat] = tokenize(self.kind.tokenizer, [(Conversation(tuple(self.turns)), (said,))])
        assert not isinstance(chat, str)
        rest = chat.rests[0]
        body = rest[: rest.index(end)] if end in rest else rest
        decoded = self.kind.tokenizer.decode(body, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        self.turns.append(Turn("bot", decoded.strip()))
        return Said(prompt, text, Completion(decoded, "eos", (*body, end)))

    def _text(self) -> str:
        marks = [*self.kind.tokenizer.all_special_tokens, *self.kind.marks]
        return next(
            text
            for text in iter(lambda: random_text(self.rng, self.kind).strip(), None)
            if not any(mark in text for mark in marks)
        )


@pytest.mark.parametrize(
    "kind",
    [kind for kind in DECODERS if kind.keeps_text and not kind.rewrites_history and kind not in CROSSING],
    ids=str,
)
def test_replies_as_the_tokenizer_writes_them_give_the_ids_of_the_whole_text(kind: Kind) -> None:
    tokenizer = kind.tokenizer
    ends = [mark for mark in ("<end_of_turn>", "<|end|>") if mark in kind.marks] or [tokenizer.eos_token]
    for seed in range(20):
        talk, before = Talk(kind, random.Random(seed)), None
        for _ in range(4):
            conversation = talk.ask()
            [prompt] = fit_prompts(tokenizer, [conversation], 10**6, [before])
            assert prompt.ids == tokenize_texts(tokenizer, render_all(tokenizer, [conversation]))[0]
            assert prompt.appended == (before is not None)
            before = talk.reply(prompt.ids, prompt.text, tokenizer.convert_tokens_to_ids(ends[0]))
