"""Models by folder for a session: our sampler or transformers', scorers out of flags, the world's own bots."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM

from lmgym.apps.chat.loading import Experiment, model_revisions, sampling_of
from lmgym.apps.world import embedded_world
from lmgym.apps.world.experiments import world
from lmgym.errors import InputError
from lmgym.generation.context_fitting import PersonaGenerator, fit
from lmgym.generation.local_generation import LocalGenerator, load_causal
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.named_scorers import load_scorers
from lmgym.text import Conversation, Turn
from reward_models.evaluation.experiments import gptj_engagement, hh

CHATS = [Conversation((Turn("user", "tell me about soup."),)), Conversation((Turn("user", "hi"),), "A bot.")]


@pytest.fixture(scope="module")
def plain(small_models: dict[str, Path]) -> LocalGenerator:
    """A GPT-2 whose next token depends on every one before."""
    model = AutoModelForCausalLM.from_pretrained(small_models["gpt2"], dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "head" not in name:
                parameter.mul_(6.0)
    return LocalGenerator(model, load_tokenizer(str(small_models["gpt2"])))


def test_samples_follow_the_seed_and_leave_torchs_generator_unchanged(
    plain: LocalGenerator,
) -> None:
    state = torch.random.get_rng_state()
    sampling = Sampling(max_new_tokens=16, seed=3)
    first = plain.reply(CHATS, 3, sampling)
    assert plain.reply(CHATS, 3, sampling) == first
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len({c.text for c in first[0]}) == 3
    letter = first[0][0].text[4]
    stopped = plain.reply(CHATS, 3, Sampling(max_new_tokens=16, seed=3, stop=(letter,)))
    assert stopped[0][0].text == first[0][0].text.partition(letter)[0]
    assert stopped[0][0].finish_reason == "stop"
    assert all(letter not in c.text for replies in stopped for c in replies)


def test_a_session_uses_the_models_sampling_unless_the_experiment_sets_one(plain: LocalGenerator) -> None:
    persona = PersonaGenerator(plain, "{persona}")
    any_model, settled = Experiment("hh", hh, ()), Experiment("gptj_engagement", gptj_engagement, ())
    assert sampling_of(any_model, persona) == (hh.DEFAULT_SAMPLING, "sampling: temperature 0.9, top_p 0.95 (defaults)")
    plain.model.generation_config.temperature = 0.6
    sampling, said = sampling_of(any_model, persona)
    assert sampling == Sampling(hh.DEFAULT_SAMPLING.max_new_tokens, 0.6)
    assert said == "sampling: temperature 0.6 (generation_config.json)"
    assert sampling_of(settled, persona)[0] == gptj_engagement.SAMPLING
    plain.model.generation_config.temperature = None
    assert sampling_of(Experiment("world", world, ()), world.get_base_model()) == (Sampling(), "")


def test_progress_is_reported_a_token_at_a_time(plain: LocalGenerator) -> None:
    told: list[tuple[int, int]] = []
    plain.reply(CHATS[:1], 2, Sampling(max_new_tokens=5, ends_at_eos=False), lambda done, of: told.append((done, of)))
    assert told == [(i, 5) for i in range(1, 6)]


def test_a_prompt_that_leaves_no_room_is_refused_and_fits_without_its_oldest_turns(plain: LocalGenerator) -> None:
    turns = tuple(Turn("user" if i % 2 == 0 else "bot", "and i like soup on sundays.") for i in range(61))
    long, sampling = Conversation(turns, "A bot."), Sampling(max_new_tokens=8)
    with pytest.raises(InputError, match="the model reads 256"):
        plain.reply([long], 1, sampling)
    kept, dropped, _ = fit(plain, long, sampling)
    assert 0 < dropped < 61
    assert plain.reply([kept], 1, sampling)


def test_gpt_j_talks_with_the_originals_sampling(small_models, scorer_folders, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    config = GPTJConfig(
        vocab_size=len(tokenizer), n_positions=256, n_embd=32, n_layer=2, n_head=4, rotary_dim=4,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    GPTJForCausalLM(config).save_pretrained(tmp_path / "gptj")
    tokenizer.save_pretrained(tmp_path / "gptj")
    settings = gptj_engagement.EngagementConfig(str(tmp_path / "gptj"), f"a={scorer_folders['llama']}")
    generator = gptj_engagement.get_base_model(settings)
    assert not generator.generator.decoder.packed, "GPT-J does its attention itself"
    sampling = gptj_engagement.SAMPLING
    wanted = (0.72, 1.13125, 64, 0.725, ("\n",))
    found = (sampling.temperature, sampling.repetition_penalty, sampling.max_new_tokens, sampling.top_p, sampling.stop)
    assert found == wanted
    replies = generator.reply(CHATS, 4, sampling)
    assert [len(r) for r in replies] == [4, 4]
    assert not any("\n" in c.text for r in replies for c in r)
    assert generator.with_form(CHATS[1]).persona == "A bot.\n<START>"
    judges = gptj_engagement.get_reward_models(settings)
    assert judges["a"].score(CHATS, ["x", "y"]).shape == (2,)
    known = model_revisions(generator, judges)
    assert known["a"]["model"] == str(scorer_folders["llama"])
    assert known["generator"]["model"] == str(tmp_path / "gptj")
    assert len(known["a"]["weights"]) == 16


def test_a_model_that_is_not_causal_is_refused(small_models, scorer_folders) -> None:
    settings = hh.HHConfig(str(small_models["qwen3"]), f"a={scorer_folders['llama']}, b={scorer_folders['gpt2']}")
    assert isinstance(hh.get_base_model(settings), LocalGenerator)
    assert list(hh.get_reward_models(settings)) == ["a", "b"]
    with pytest.raises(InputError, match="does not exist"):
        load_causal("/nowhere/model")
    for family in ("gpt2", "llama"):
        with pytest.raises(InputError, match="is not a causal model"):
            load_causal(str(scorer_folders[family]))


@pytest.mark.parametrize("words", ["", "a=", "=b", ",", "a=x,b="])
def test_scorers_without_a_path_are_refused(words: str) -> None:
    with pytest.raises(InputError, match=r"needed \[name=\]PATH"):
        load_scorers(words)


def test_one_name_for_two_scorers_is_refused(scorer_folders) -> None:
    with pytest.raises(InputError, match="names a twice"):
        load_scorers(f"a={scorer_folders['gpt2']},a={scorer_folders['llama']}")


# --- the world


def test_the_worlds_bots_reply_to_any_text_and_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = world.get_base_model()
    chats = [
        Conversation((Turn("user", text),), persona)
        for text in ("tell me about ferns.", "zzz", "你好 \x1b[31m")
        for persona in (world.PERSONA, "", "Bob loves roses and hates owls.")
    ]
    replies = generator.reply(chats, 8, Sampling())
    assert all(c.text.strip() for group in replies for c in group)
    assert len({c.text for c in replies[0]}) > 4
    truth = embedded_world.HiddenUtilityScorer(embedded_world.World(0)).score(
        [chats[0]] * 8, [c.text for c in replies[0]]
    )
    assert np.std(truth) > 0.1
    persona = embedded_world.persona_of(embedded_world.World(0), "Bob loves roses and hates owls.")
    assert (persona.likes, persona.dislikes) == ("roses", "owls")
    assert any(len(c.turns) > 4 for c in world.get_conversations())


def test_scorers_of_the_world_see_what_it_logs() -> None:
    seen: list[Conversation] = []
    judge = SimpleNamespace(score=lambda conversations, replies: seen.extend(conversations) or [0.0] * len(replies))
    turns = tuple(Turn("user" if i % 2 == 0 else "bot", str(i)) for i in range(7))
    embedded_world.LastExchangeScorer(judge).score([Conversation(turns, "p")], ["x"])
    assert seen == [Conversation(turns[-3:], "p")]


def test_without_the_demos_scorer_its_command_is_named_and_nothing_is_started(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no scorer in outputs/demo/scorer/model; `lmgym demo` trains it"):
        world.get_reward_models()
    assert not list(tmp_path.iterdir())
