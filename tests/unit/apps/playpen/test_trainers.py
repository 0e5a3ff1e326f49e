"""Trainers: their base class, the file that names one, games to learn in, branches, and checkpoints."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from toy_games import SayGame, scripted

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.running import load_trainer, run_file
from lmgym.apps.playpen.trainers.base import BaseCallback, BasePlayPen, GameRecordCallback
from lmgym.apps.playpen.trainers.branches import branch_pairs
from lmgym.apps.playpen.trainers.checkpoints import keep_checkpoint, learner_source, successful_rows, with_flags
from lmgym.apps.playpen.trainers.learning_games import (
    TEACHER,
    GameReward,
    LearningGame,
    TeacherReplies,
    learning_tasks,
    paper_reward,
    split_tasks,
)
from lmgym.apps.playpen.trainers.rollout_records import RolloutRecords
from lmgym.config import RunConfig
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError, TooLong
from lmgym.generation.protocol import Completion, Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation
from ppo.config import MethodConfig
from sft.config import SftConfig

ROOT = Path(__file__).parents[4]
YES = ["yes"]


class Plays(BasePlayPen):
    """Plays all instances of a game."""

    def learn(self, game_registry) -> None:
        self.records = self.collect_rollouts(game_registry, tasks_of(game_registry))


def test_a_trainer_collects_rollouts_and_records_are_where_playpen_puts_them(tmp_path) -> None:
    learner, teacher = scripted(YES, "a"), scripted(YES, "b", 0.5)
    trainer = Plays(learner, teacher)
    seen = []

    class Watch(BaseCallback):
        def on_episode(self, task, records, num_timesteps) -> None:
            seen.append((task.number, num_timesteps))

    trainer.add_callback(Watch())
    trainer.add_callback(GameRecordCallback(tmp_path))
    trainer.learn(SayGame(2))
    assert seen == [(0, 0), (1, 3)]
    assert trainer.num_timesteps == 6
    assert trainer.is_learner(learner)
    assert trainer.is_teacher(teacher)
    folder = tmp_path / "a-t0.0--b-t0.5/rollout0001/say/0_easy"
    assert sorted(path.name for path in folder.iterdir()) == ["episode_3", "episode_6", "experiment.json"]
    assert sorted(path.name for path in (folder / "episode_3").iterdir()) == [
        "instance.json", "interactions.json", "requests.json", "scores.json",
    ]  # fmt: skip


def test_a_file_must_define_one_trainer(tmp_path) -> None:
    head = "from lmgym.apps.playpen.trainers.base import BasePlayPen\n"
    body = (
        "class {}(BasePlayPen):\n    def __init__(self, learner): super().__init__(learner)\n"
        "    def learn(self, r): pass\n"
    )
    path = tmp_path / "mine.py"
    path.write_text(head + body.format("A"))
    assert load_trainer(str(path)).__name__ == "A"
    with pytest.raises(InputError, match="takes no teacher"):
        run_file(str(path), "mock", "mock", 0.0, 10, None)
    with pytest.raises(InputError, match="takes no further flags"):
        run_file(str(path), "mock", None, 0.0, 10, None, flags=["--steps", "3"])
    for text, message in (
        (head, "defines none"), (head + body.format("A") + body.format("B"), "defines A, B"),
        ("import not_there", "mine.py failed: ModuleNotFoundError"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_trainer(str(path))
    with pytest.raises(InputError, match="there is no file"):
        load_trainer(str(tmp_path / "other.py"))


@pytest.mark.parametrize("path", sorted((ROOT / "examples/trl").glob("*_trainer*.py")), ids=lambda p: p.stem)
def test_each_example_defines_a_trainer(path: Path) -> None:
    assert issubclass(load_trainer(str(path)), BasePlayPen)


@pytest.mark.parametrize(("of_the_learner", "of_rollouts"), [(0.0, 1.0), (0.4, 0.4), (1.3, 1.3)])
def test_grpo_samples_at_the_learners_temperature_or_at_1(
    of_the_learner: float, of_rollouts: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_models
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/trl")
    fields = {"model_name": "a", "backend": "huggingface_local", "huggingface_id": str(small_models["gpt2"])}
    learner = Model(Spec(fields), of_the_learner, 20)
    config = import_module("grpo_lora").grpo_config(Plays(learner), tmp_path / "run", MethodConfig("grpo"))
    assert (config.rollout.temperature, config.rollout.max_new_tokens) == (of_rollouts, 20)


class Learner:
    """Says what it is told to, a reply each turn."""

    max_length = 1000

    def __init__(self, *replies: str) -> None:
        self.replies, self.prompts = list(replies), []

    def generate(self, prompts, n, sampling):
        self.prompts += prompts
        return [[Completion(self.replies.pop(0), "eos", (1,), (0.0,))] for _ in prompts]


def episode(tokenizer, task, learner: Learner, teacher=None, programmed: bool = False):
    others = {TEACHER: TeacherReplies(teacher)} if teacher else {}
    environment = LearningGame({"say": SayGame()}, programmed, paper_reward)
    given = Sampling(max_new_tokens=4), GameReward(), others
    [found] = run_episodes([environment], [task], [5], learner, tokenizer, *given)
    return found


def tasks(self_play: bool, teacher: str = "t") -> list[dict]:
    return learning_tasks([SayGame(1)], self_play, teacher)


def test_in_self_play_one_episode_holds_the_turns_of_all_seats(tokenizers) -> None:
    [task] = tasks(True)
    found = episode(tokenizers["gpt2"], task, Learner("yes", "yes", "yes"))
    assert (len(found.steps), found.total_reward, found.info) == (
        3,
        1.0,
        {"played": 1, "success": 1, "main_score": 100},
    )
    assert ["first" in step.prompt_text for step in found.steps] == [True, False, True]
    assert episode(tokenizers["gpt2"], task, Learner("yes", "no")).total_reward == 0
    assert episode(tokenizers["gpt2"], task, Learner("what?")).total_reward == -1


def test_with_a_teacher_the_learner_takes_each_seat_and_only_its_turns_are_steps(tokenizers) -> None:
    first, second = tasks(False)
    assert (first["learner"], second["learner"]) == (("first",), ("second",))
    found = episode(tokenizers["gpt2"], first, Learner("yes", "yes"), scripted(YES))
    assert (len(found.steps), found.total_reward) == (2, 1.0)
    found = episode(tokenizers["gpt2"], second, Learner("yes"), programmed=True)
    assert (len(found.steps), found.total_reward) == (1, 1.0)


def test_a_game_that_the_teacher_aborts_is_played_once_more_and_then_masked(tokenizers) -> None:
    first, second = tasks(False)
    replies = ["?", "yes"]
    learner = Learner("yes", "yes", "yes")
    found = episode(tokenizers["gpt2"], first, learner, scripted(lambda c, rng: replies.pop(0)))
    assert (found.total_reward, replies) == (1.0, [])
    # from its beginning: what the learner said in the game that the teacher aborted is not trained on
    assert [step.prompt for step in found.steps] == learner.prompts[1:]
    assert len(learner.prompts) == 3
    found = episode(tokenizers["gpt2"], first, Learner("yes", "yes"), scripted(["?"]))
    assert found.total_reward is None
    assert len(found.steps) == 1
    assert found.steps[-1].error == "the teacher aborted the game"
    found = episode(tokenizers["gpt2"], second, Learner("unheard"), scripted(["?"]))
    assert found.total_reward is None
    assert len(found.steps) == 1


def test_a_game_that_the_learner_aborts_or_that_fails_is_not_played_again(tokenizers) -> None:
    first, _ = tasks(False)
    assert episode(tokenizers["gpt2"], first, Learner("?"), scripted(YES)).total_reward == -1
    broken = {**first, "instance": {"game_id": 0, "breaks": 1}}
    found = episode(tokenizers["gpt2"], broken, Learner("yes"), scripted(YES))
    assert found.total_reward is None
    assert found.steps[-1].error == "the game broke"


def test_a_teacher_has_its_own_temperature_and_says_nothing_to_what_is_too_long() -> None:
    seen = []

    class Short:
        def reply(self, conversations, n, sampling, progress=None):
            seen.append((sampling.temperature, sampling.max_new_tokens))
            if len(conversations) > 1 or sampling.seed == (1,):
                raise TooLong("long")
            return [[Completion("ok", "eos")]]

    teacher = Model(Spec({"model_name": "t"}), 0.25, 7)
    vars(teacher)["generator"] = Short()
    given = [Conversation(()), Conversation(())], 1, Sampling(temperature=1.0, seed=(1, 2))
    found = TeacherReplies(teacher).reply(*given)
    assert [completion.text for [completion] in found] == ["", "ok"]
    assert set(seen) == {(0.25, 7)}


def test_episodes_of_training_leave_records_by_rollout(tokenizers, tmp_path) -> None:
    """Three episodes, two of which are a rollout; then another run of one episode."""

    def run(record: RolloutRecords, episodes: int) -> None:
        environments = [LearningGame({"say": SayGame()}, False, paper_reward, record) for _ in range(episodes)]
        given = [learning_tasks([SayGame(2)], True)[0]] * episodes
        learner, seeds = Learner(*["yes"] * 3 * episodes), list(range(episodes))
        run_episodes(environments, given, seeds, learner, tokenizers["gpt2"], Sampling(max_new_tokens=4), GameReward())

    players = [scripted(YES, "a")]
    run(RolloutRecords(players, 2, tmp_path), 3)
    run(RolloutRecords(players, 2, tmp_path), 1)
    top = tmp_path / "a-t0.0"
    found = sorted(str(path.parent.relative_to(top)) for path in top.rglob("scores.json"))
    assert found == [
        "rollout0001/say/easy/episode_0", "rollout0001/say/easy/episode_1", "rollout0002/say/easy/episode_0",
        "rollout0003/say/easy/episode_0",
    ]  # fmt: skip
    assert (top / "rollout0002/say/easy/experiment.json").is_file()
    assert (top / "player_models.json").is_file()


def test_held_out_instances_are_held_out_in_every_seat() -> None:
    own = learning_tasks([SayGame(10)], False, "t")
    learned, kept = split_tasks(own, 0.2, 0)
    ids = [{task["instance"]["game_id"] for task in part} for part in (learned, kept)]
    assert (len(learned), len(kept), ids[0] & ids[1]) == (16, 4, set())
    with pytest.raises(InputError, match="say has one instance"):
        split_tasks(tasks(True), 0.2, 0)


def test_branches_give_pairs_of_the_best_and_the_worst_sibling_of_a_point() -> None:
    learner = scripted(lambda conversation, rng: ["yes", "no", "?"][int(rng.integers(3))], "a", 1.0)
    games = [SayGame(6)]
    own = learning_tasks(games, False, "t")
    pairs = branch_pairs(learner, scripted(YES), games, own, 6)
    assert pairs
    for row in pairs:
        assert row["prompt"][-1]["role"] == "user"
        said = row["chosen"][0]["content"], row["rejected"][0]["content"]
        assert said in {("yes", "no"), ("yes", "?"), ("no", "?")}
    with pytest.raises(InputError, match=r"none of .* branching points has replies of different worth"):
        branch_pairs(scripted(YES, "a", 1.0), scripted(YES), games, own, 3)
    with pytest.raises(InputError, match="branches of a greedy learner are all equal"):
        branch_pairs(scripted(YES), None, games, own, 3)


def test_replies_of_branches_have_seeds_by_episode_step_and_number_of_the_branch() -> None:
    seeds = []

    class Seeds:
        def reply(self, conversations, n, sampling, progress=None):
            seeds.append(sampling.seed)
            return [[Completion("yes" if seed % 2 else "no", "eos")] for seed in sampling.seed]

    learner = scripted(YES, "a", 1.0)
    vars(learner)["generator"] = Seeds()
    games = [SayGame(2, length=2)]
    assert branch_pairs(learner, None, games, learning_tasks(games, True), 3, 4)
    assert seeds[0] == (4 * 1_000_003, 5 * 1_000_003)
    assert seeds[1] == (5 * 1_000_003 + 10_007,), "the first game was lost at once"
    assert seeds[2][:2] == (4 * 1_000_003 + 101, 4 * 1_000_003 + 202)


def test_siblings_of_a_branching_point_read_its_prompt_also_if_the_teacher_aborts() -> None:
    def learn(conversation, rng) -> str:
        is_first = conversation.turns[-1].text.endswith("0")
        return "yes" if rng.random() < 0.5 else "what?" if is_first else "no"

    teacher = scripted(lambda conversation, rng: "yes" if rng.random() < 0.8 else "?", "b", 1.0)
    games = [SayGame(20, length=5)]
    pairs = branch_pairs(scripted(learn, "a", 1.0), teacher, games, learning_tasks(games, False, "b"), 6)
    assert {"0", "1", "2"} <= {row["prompt"][-1]["content"][-1] for row in pairs}
    for row in pairs:
        said = "what?" if row["prompt"][-1]["content"].endswith("0") else "no"
        assert row["rejected"][0]["content"] == said


def trained(folder: Path, source: Path, result: str) -> Path:
    """The folder of a run of 7 updates, with a model or an adapter."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 3}\n{"step": 7}\n')
    (folder / "run.json").write_text("{}")
    if result == "model":
        shutil.copytree(source, folder / result)
    else:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(source)
        get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).save_pretrained(folder / result)
    return folder


def local(source: Path, **config: object) -> Model:
    fields = {"model_name": "a", "backend": "huggingface_local", "huggingface_id": str(source), "model_config": config}
    return Model(Spec(fields))


@pytest.mark.parametrize("result", ["model", "adapter"])
def test_a_trained_model_gets_its_checkpoint_and_its_registry_entry(result, small_models, tmp_path, capsys) -> None:
    source = small_models["llama"]
    folder = trained(tmp_path / "run", source, result)
    target = keep_checkpoint(local(source, eos_to_cull="x"), folder, result, "sft")
    assert target == folder / "checkpoint-7"
    [entry] = json.loads((folder / "model_registry_entry.json").read_text())
    assert entry["model_name"] == "a-sft"
    assert entry["huggingface_id"] == str(target if result == "model" else source)
    own = {} if result == "model" else {"peft_model": str(target)}
    assert entry["model_config"] == {"eos_to_cull": "x", **own}
    assert '"model_name": "a-sft"' in capsys.readouterr().out


def test_an_entry_that_does_not_load_is_not_printed(small_models, tmp_path, capsys) -> None:
    folder = trained(tmp_path / "run", small_models["llama"], "model")
    (folder / "model/tokenizer.json").unlink()
    with pytest.raises(InputError, match="token"):
        keep_checkpoint(local(small_models["llama"]), folder, "model", "sft")
    assert not (folder / "model_registry_entry.json").exists()
    assert "add this entry" not in capsys.readouterr().out


def test_a_learner_whose_template_it_would_not_be_trained_with_is_refused(small_models, tmp_path) -> None:
    bare = shutil.copytree(small_models["gpt2"], tmp_path / "bare")
    for path in bare.glob("chat_template*"):
        path.unlink()
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="premade_chat_template, and its tokenizer has none"):
        learner_source(local(bare, premade_chat_template=True))
    with pytest.raises(InputError, match="custom_chat_template, with which no stage trains"):
        learner_source(local(bare, custom_chat_template="{{ messages[0].content }}"))
    assert learner_source(local(bare)).model == str(bare)
    # a stage saves the plain template with the model, which is then premade
    tokenizer = load_tokenizer(str(bare))
    tokenizer.save_pretrained(bare)
    assert learner_source(local(bare, premade_chat_template=True)).model == str(bare)


def test_sft_learns_from_the_won_games_that_the_user_chose(tmp_path) -> None:
    said = [{"role": "user", "content": "say"}, {"role": "assistant", "content": "yes"}]
    rows = [{"messages": said, "meta": {"game": game, "outcome": outcome}}
            for game, outcome in (("a", "success"), ("a", "lose"), ("b", "success"))]  # fmt: skip
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    specs = [Spec({"game_name": name}) for name in ("a", "b")]

    def kept(registry: GameRegistry) -> list[dict]:
        lines = successful_rows(path, tmp_path / "out", registry).read_text().splitlines()
        return [json.loads(line)["meta"]["game"] for line in lines]

    assert kept(GameRegistry(specs)) == ["a", "b"]
    assert kept(GameRegistry(specs[:1], is_chosen=True)) == ["a"]
    with pytest.raises(InputError, match="no row has the game 'c'"):
        kept(GameRegistry([Spec({"game_name": "c"})], is_chosen=True))


def test_the_folder_of_a_trainer_is_not_a_flag(tmp_path) -> None:
    config = SftConfig("a", run=RunConfig(output="models/sft/a"))
    assert with_flags(config, ["--max_updates", "3"], Path("models/sft/a")).optimizer.max_updates == 3
    with pytest.raises(InputError, match="--output elsewhere; needed: leave it out"):
        with_flags(config, ["--output", "elsewhere"], Path("models/sft/a"))


def test_a_learner_must_have_weights_here() -> None:
    with pytest.raises(InputError, match="of backend openai; needed: huggingface_local"):
        learner_source(Model(Spec({"model_name": "a", "backend": "openai"})))
    fields = {"model_name": "a", "backend": "huggingface_local", "model_config": {"peft_model": "x"}}
    with pytest.raises(InputError, match="a learner without an adapter"):
        learner_source(Model(Spec(fields)))
