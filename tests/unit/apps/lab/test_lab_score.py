"""`lmgym lab score`: fixed prompts of users whom nothing else has, the figure by hand, and what is refused."""

import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lmgym.apps.lab.record import VERSION
from lmgym.apps.lab.score import TOGETHER, Scoring, is_garbled, score_policies, score_policy
from lmgym.apps.lab.score_policies import are_small, bot_sentences, check_tokenizer, resolve_policies
from lmgym.apps.lab.score_prompts import PROMPTS, REPLIES, USERS, score_prompts
from lmgym.apps.world.ab import MOST_USERS
from lmgym.apps.world.bots import BOTS as MANNERS
from lmgym.apps.world.bots import speak
from lmgym.apps.world.grammar import BOT_TEMPLATES, WORDS
from lmgym.apps.world.tables import ANNOTATORS, EVAL_USERS
from lmgym.apps.world.world import VERSION as WORLD_VERSION
from lmgym.apps.world.world import World
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.report.status_line import StatusLine
from lmgym.statistics import mean
from lmgym.text import to_transcript

SEVEN = World(7)
LINE = StatusLine("replying", PROMPTS, "prompts", shown=False)


def lab_score(*words: object) -> Result:
    """Runs `lmgym lab score`."""
    return CliRunner().invoke(main, ["lab", "score", *map(str, words)])


def without_times(record: dict) -> dict:
    """A record without seconds."""
    rows = [{**row, "seconds": 0} for row in record["policies"]]
    return {**record, "policies": rows, "bots": {**record["bots"], "seconds": 0}}


def test_prompts_are_those_of_this_version() -> None:
    texts = [to_transcript(prompt) for prompt in score_prompts(SEVEN)]
    pinned = (VERSION, WORLD_VERSION, hashlib.sha256("\n\n".join(texts).encode()).hexdigest()[:16])
    assert pinned == ("1", "1.2", "bac2d6433f541432"), "other prompts are another version of the laboratory"
    assert texts != [to_transcript(prompt) for prompt in score_prompts(World(8))]


def test_prompts_are_contexts_as_the_app_has_them() -> None:
    prompts, grammar = score_prompts(SEVEN), SEVEN.grammar
    assert len(prompts) == PROMPTS
    personas = {persona.text for persona in grammar.vocabulary.personas}
    assert {prompt.persona for prompt in prompts} == personas
    assert {tuple(turn.speaker for turn in prompt.turns) for prompt in prompts} == {("user",), ("user", "bot", "user")}
    assert all(grammar.named_things(prompt) for prompt in prompts)
    openings = np.mean(["let us talk" in p.turns[-1].text or "hello" in p.turns[-1].text for p in prompts])
    assert 0.1 < openings < 0.9


def test_the_users_are_in_no_table_and_in_no_experiment() -> None:
    assert max(MOST_USERS, EVAL_USERS + MOST_USERS, ANNOTATORS + MOST_USERS) < USERS


def test_the_figure_is_the_mean_of_the_hidden_utility_with_its_interval_over_prompts() -> None:
    prompts = score_prompts(SEVEN)
    scored = score_policy(ScriptedGenerator(lambda *_: "i am glad."), prompts, SEVEN, Scoring(), LINE, 0)
    by_hand = SEVEN.utility(prompts, ["i am glad."] * PROMPTS)
    assert scored.utility.shape == (PROMPTS, REPLIES)
    assert scored.utility[:, 0] == pytest.approx(by_hand)
    assert (scored.words == 3).all()
    assert not scored.garbled.any()
    assert not scored.cut.any()


def test_a_reply_is_answered_by_its_own_random_numbers_in_parts_as_in_one() -> None:
    seeds = [Scoring(5).sampling(first, TOGETHER).seed for first in range(0, PROMPTS, TOGETHER)]
    assert sum(seeds, ()) == Scoring(5).sampling(0, PROMPTS).seed
    assert len(set(sum(seeds, ()))) == PROMPTS
    assert not set(sum(seeds, ())) & set(Scoring(6).sampling(0, PROMPTS).seed)


def test_the_best_of_more_replies_by_gold_earns_more_and_is_compared_in_pairs(tmp_path: Path) -> None:
    result = lab_score("bots", "bots@gold:4", "--world", 7, "--output", tmp_path / "of/score.json")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "of/score.json").read_text())
    bots, best = record["policies"]
    assert [bots["policy"], best["policy"]] == ["bots", "bots@gold:4"]
    assert (record["world"], record["prompts"], record["replies"]) == (7, PROMPTS, REPLIES)
    assert (record["lab_version"], record["world_version"]) == (VERSION, WORLD_VERSION)
    change = np.array(best["by_prompt"]) - np.array(bots["by_prompt"])
    assert best["change"] == pytest.approx(change.mean(), abs=1e-5)
    assert best["change_low"] == pytest.approx(mean(change).low, abs=1e-4)
    assert best["change_low"] > 0.7
    assert bots["utility_low"] < bots["utility"] < bots["utility_high"]
    assert abs(bots["utility"]) < 0.1  # what users are used to is 0
    assert "change" not in bots
    assert {**record["bots"], "seconds": 0} == {**bots, "seconds": 0}
    assert f"{bots['utility']:.3f}" in result.stdout
    assert "change: from bots" in result.stdout
    assert "the world's bots" not in result.stdout  # which are listed


def test_one_policy_is_shown_beside_the_bots_and_the_same_command_gives_the_same_record(tmp_path: Path) -> None:
    first, again = (score_policies(["bots@random:2"], SEVEN, Scoring(seed=1)) for _ in range(2))
    assert without_times(first) == without_times(again)
    assert first["bots"]["policy"] == "bots"
    assert len(first["policies"]) == 1
    shown = lab_score("bots@random:2", "--world", 7, "--seed", 2, "--output", tmp_path / "2.json")
    assert "the world's bots" in shown.stdout
    assert "change" not in shown.stdout
    [of_first], [other] = first["policies"], json.loads((tmp_path / "2.json").read_text())["policies"]
    assert other["utility"] != of_first["utility"]
    assert abs(other["utility"] - of_first["utility"]) < 0.1  # seeds differ by sampling alone


@pytest.mark.parametrize(
    ("reply", "garbled"),
    [("ok.", False), ("OK.", False), ("I  am glad. ok.", False), ("", True), ("ok. glad am i.", True), ("ok", True)],
)
def test_a_reply_is_garbled_if_one_sentence_of_it_is(reply: str, garbled: bool) -> None:
    assert is_garbled(SEVEN, reply) is garbled


def test_a_models_replies_are_scored_and_those_cut_are_counted(small_models, tmp_path: Path) -> None:
    words = ["--world", 7, "--max_new_tokens", 1, "--output", tmp_path / "a.json"]
    result = lab_score(small_models["llama"], *words)
    assert result.exit_code == 0, result.output
    [row] = json.loads((tmp_path / "a.json").read_text())["policies"]
    assert row["garbled"] > 0.9  # it is untrained
    assert row["cut"] > 0.9
    assert "are cut at 1 tokens" in result.stdout


def test_a_runs_folder_stands_for_its_model(small_models, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_models["llama"], run / "model")
    assert resolve_policies([str(run / "model"), "bots"], SEVEN) == [str(run / "model"), "bots"]
    with pytest.raises(InputError, match="is not a model folder"):
        resolve_policies([str(run)], SEVEN)  # whose run it would be is not said
    (run / "run.json").write_text("{}")
    assert resolve_policies([f"{run}@{run}:3", str(run)], SEVEN) == [f"{run}/model@{run}/model:3", f"{run}/model"]
    assert resolve_policies(["bots@gold:2", "bots@random:3"], SEVEN) == ["bots@gold:2", "bots@random:3"]


def test_small_models_and_bots_are_small_and_served_ones_are_not(small_models) -> None:
    assert are_small(["bots", "bots@gold:3", f"{small_models['llama']}@{small_models['gpt2']}:2"])
    assert not are_small(["bots", "openai:http://127.0.0.1:1/v1#m"])


def test_the_sentences_that_a_tokenizer_is_tried_on_are_all_that_bots_are_made_of() -> None:
    grammar = SEVEN.grammar
    sentences = bot_sentences(grammar)
    parsed = [grammar.parse(sentence) for sentence in sentences]
    assert all(len(found) == 1 for found in parsed)
    assert {found[0].kind for found in parsed} == set(BOT_TEMPLATES)
    words = {word for sentence in sentences for word in WORDS.findall(sentence)}
    assert words >= {*grammar.topic_of, *grammar.vocabulary.adjectives}
    rng, persona = random.Random(0), grammar.vocabulary.personas[0]
    for manners in MANNERS * 20:
        said = speak(grammar, rng, manners, persona, SEVEN.topics[0], [], [])
        assert set(WORDS.findall(said)) <= words


def word_tokenizer(words: list[str], marks_apart: bool = False):
    """A tokenizer of these words, with unk for all others; it gives a text back in lower case."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["[UNK]", "[PAD]", *words]))}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.normalizer = normalizers.Lowercase()
    if marks_apart:
        plain.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        plain.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[a-z]+|[^a-z]"), "isolated")
        plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]")


def spoken(world: World) -> list[str]:
    """The words and marks of a world's bots, as they are within a text."""
    words = {word for sentence in bot_sentences(world.grammar) for word in WORDS.findall(sentence)}
    return sorted(f" {word}" if word.isalpha() else word for word in words)


def test_a_tokenizer_that_gives_every_sentence_back_is_taken_in_any_case_and_spacing() -> None:
    check_tokenizer(word_tokenizer(spoken(SEVEN)), "own", SEVEN)


def test_a_tokenizer_without_a_word_of_the_world_is_refused_with_the_word() -> None:
    thing, adjective = next(iter(SEVEN.grammar.topic_of)), SEVEN.grammar.vocabulary.adjectives[-1]
    known = [word for word in spoken(SEVEN) if word not in (f" {thing}", f" {adjective}")]
    with pytest.raises(InputError, match="cannot say what world 7 reads") as error:
        check_tokenizer(word_tokenizer(known), "poor", SEVEN)
    assert f"it has no {thing}, {adjective}" in str(error.value) or f"it has no {adjective}, {thing}" in str(
        error.value
    )
    assert len(str(error.value).splitlines()) == 1


def test_a_tokenizer_of_another_worlds_words_is_refused() -> None:
    with pytest.raises(InputError, match=r"of its bots [0-9]+ do not come back"):
        check_tokenizer(word_tokenizer(spoken(World(8))), "other", SEVEN)


def test_a_tokenizer_that_sets_marks_apart_is_refused_with_an_example_and_no_word() -> None:
    marks_apart = word_tokenizer([word.strip() for word in spoken(SEVEN)], marks_apart=True)
    with pytest.raises(InputError, match=r"such as 'violins.* \.'|such as '.*' as '.* \.'") as error:
        check_tokenizer(marks_apart, "apart", SEVEN)
    assert "it has no" not in str(error.value)


def test_a_policy_that_cannot_say_the_worlds_words_is_refused_before_it_replies(small_models, tmp_path: Path) -> None:
    folder = tmp_path / "mute"
    shutil.copytree(small_models["llama"], folder)
    word_tokenizer(["hello"]).save_pretrained(folder)
    result = lab_score("bots", folder, "--world", 7)
    assert result.exit_code == 2
    assert "cannot say what world 7 reads" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'POLICY [POLICY ...]'"),
        (["bots"], "Missing option '--world'"),
        (["bots", "--world", "abc"], "--world 'abc' is no world; needed: a seed of `lmgym world`, 0 to 4,294,967,295"),
        (["bots", "--world", "-1"], "--world '-1' is no world"),
        (["bots", "--world", str(2**32)], "--world '4294967296' is no world"),
        (["bots", "--world", "9" * 5000], "is no world"),
        (["bots", "--world", "²"], "is no world"),
        (["bots", "--world", "tests"], "is no world; needed: a seed of `lmgym world`, 0 to 4,294,967,295; of a folder"),
        (["nowhere", "--world", "7"], "'nowhere' is not a folder; needed: a folder, owner/name of the hub"),
        (["tests", "--world", "7"], "is not a model folder"),
        (["bots@nowhere:2", "--world", "7"], "scorer 'nowhere' of 'bots@nowhere:2' is not a folder"),
        (["bots@tests:2", "--world", "7"], "is not a model folder"),
        (["bots", "--world", "7", "--temperature", "-1"], "temperature=-1.0; needed"),
        (["bots", "--world", "7", "--seed", "-1"], "seed=-1; needed: 0 to 4,294,967,295"),
        (["bots", "--world", "7", "--max_new_tokens", "0"], "max_new_tokens=0; needed"),
        (["bots", "--world", "7", "--output", "."], "--output . is a folder; needed: a file"),
    ],
)
def test_bad_input_is_refused_in_a_line(words: list[str], message: str, monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[4])
    result = lab_score(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
