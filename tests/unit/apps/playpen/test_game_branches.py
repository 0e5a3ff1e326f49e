"""Games that branch: the tree environment, the branching runner, and the pairs that are made of siblings."""

import json

import pytest
from toy_games import SayGame, scripted

from lmgym.apps.playpen.playing import tasks_of
from lmgym.apps.playpen.trainers import game_runs
from lmgym.apps.playpen.trainers.base import BasePlayPen, GameRecordCallback
from lmgym.apps.playpen.trainers.branching import GameBranchingEnv
from lmgym.apps.playpen.trainers.buffers import (
    BranchingEpisodeBuffer,
    BranchingRolloutBuffer,
    EpisodeBuffer,
    GameSnapshot,
    GameStep,
)
from lmgym.apps.playpen.trainers.game_runs import (
    BranchingEpisodeBufferCallback,
    EpisodeBufferCallback,
    GameBenchmark,
    GameBenchmarkCallback,
    GameInstances,
    to_instances_filter,
    to_sub_selector,
)
from lmgym.apps.playpen.trainers.result_files import (
    EpochResultsFolder,
    EpochResultsFolderCallback,
    ExperimentFileSaver,
    InstanceFileSaver,
    InteractionsFileSaver,
)
from lmgym.apps.playpen.trainers.runners import batchwise, branching, sequential
from lmgym.apps.playpen.trainers.stepping import PLAYER, GameEnv
from lmgym.errors import InputError, TooLong


def in_turn(*replies: str, name: str = "b"):
    """A player that gives these replies, one a request, and begins anew."""
    asked = iter(replies * 100)
    return scripted(lambda conversation, rng: next(asked), name)


class Learns(BasePlayPen):
    """Does nothing."""

    def learn(self, game_registry) -> None:
        """Nothing."""


@pytest.fixture
def say(monkeypatch) -> SayGame:
    """The game that each entry opens."""
    game = SayGame(2)
    monkeypatch.setattr(game_runs, "open_game", lambda spec, for_training: game)
    return game


def run_branching(game: SayGame, learner, callbacks) -> None:
    with GameBenchmark.load_from_spec(game.spec) as benchmark:
        instances = GameInstances.from_game_spec(benchmark.game_spec)
        condition = branching.is_player_model(learner)
        branching.run(
            benchmark,
            instances,
            [scripted(["yes"], "a"), learner],
            callbacks,
            branching_factor=2,
            branching_condition=condition,
        )


def test_of_the_replies_at_a_branching_point_the_best_is_chosen_and_the_worst_rejected(say) -> None:
    learner, buffer = in_turn("no", "yes", "stop", "stop"), BranchingEpisodeBuffer()
    run_branching(say, learner, [BranchingEpisodeBufferCallback(buffer)])
    pairs = buffer.to_preference_dataset(learner)
    assert pairs.to_list() == [
        {
            "prompt": [{"role": "user", "content": "second: say yes, 1"}],
            "chosen": [{"role": "assistant", "content": "yes"}],
            "rejected": [{"role": "assistant", "content": "no"}],
        }
    ], "the second game's replies are worth the same"
    games = buffer.to_conversational_dataset("Player 2")
    assert [row["reward"] for row in games] == [0.0, 1.0, -1.0, -1.0]
    assert games[1]["messages"][-1] == {"role": "assistant", "content": "yes"}
    assert len(buffer.to_preference_dataset("Player 2", require_different_scores=False)) == 2
    assert buffer.to_preference_dataset("Player 1").to_list() == [], "which never branched"


def test_a_reply_is_worth_the_mean_of_the_branches_that_it_led_to() -> None:
    game = SayGame(1)
    env = GameEnv(game, [in_turn("yes")], tasks_of(game))
    step = {reply: GameStep({}, reply, False, {PLAYER: env.current_player}) for reply in ("good", "mixed")}
    buffer = BranchingEpisodeBuffer()
    for branch, reply, score in ((0, "mixed", 1.0), (0, "mixed", -1.0), (1, "good", 0.5)):
        buffer.add_branching_point(GameSnapshot(7, branch), 0, [step[reply]], score)
    [pair] = buffer.to_preference_dataset("first")
    assert pair["chosen"][0]["content"] == "good", "0.5 against a mean of 0, though one branch of the other won"
    assert pair["rejected"][0]["content"] == "mixed"
    buffer.add_branching_point(GameSnapshot(7, 0), 0, [step["mixed"]], 1.5)
    assert buffer.to_preference_dataset("first").to_list() == [], "both are worth 0.5 now"


def test_each_epoch_has_branching_points_of_its_own_and_branches_have_files(say, tmp_path, capsys) -> None:
    learner, buffer = in_turn("no", "yes"), BranchingEpisodeBuffer()
    folder = EpochResultsFolder(tmp_path, "run")
    callbacks = [
        BranchingEpisodeBufferCallback(buffer), EpochResultsFolderCallback(folder), InstanceFileSaver(folder),
        ExperimentFileSaver(folder, player_model_infos={}), InteractionsFileSaver(folder, store_branches=True),
    ]  # fmt: skip
    for _ in range(2):
        run_branching(say, learner, callbacks)
    assert len(buffer.to_preference_dataset(learner)) == 4
    assert sorted(str(path.parent.relative_to(tmp_path / "run")) for path in tmp_path.rglob("scores.json")) == [
        f"epoch_0000{epoch}/say/easy/instance_0000{instance}/branch_0000{branch}"
        for epoch in (1, 2) for instance in (0, 1) for branch in (0, 1)
    ]  # fmt: skip
    assert json.loads((tmp_path / "run/epoch_00001/say/easy/experiment.json").read_text())["game_name"] == "say"
    assert (tmp_path / "run/epoch_00002/say/easy/instance_00001/instance.json").is_file()
    run_branching(say, scripted(["yes"], "c"), [])
    assert "warning" not in capsys.readouterr().err


def test_conditions_choose_the_turns_and_none_is_a_warning(say, capsys) -> None:
    model = scripted(["yes"], "a")
    benchmark, instances = GameBenchmark.load_from_spec(say.spec), GameInstances.from_game_spec(say.spec)

    def leaves(condition) -> int:
        buffer = BranchingEpisodeBuffer()
        callbacks = [BranchingEpisodeBufferCallback(buffer)]
        branching.run(benchmark, instances, [model], callbacks, branching_factor=2, branching_condition=condition)
        return len(buffer.trajectories) // 2

    first, second = branching.is_player_role("first"), branching.is_player_role("Player 2")
    assert (leaves(None), leaves(first), leaves(second)) == (8, 4, 2)
    assert (leaves(branching.is_round(1)), leaves(branching.combined_condition(first, branching.is_round(0)))) == (2, 2)
    assert capsys.readouterr().err == ""
    assert leaves(branching.is_player_role("WordGuesser")) == 1
    assert "no turn branched, since branching_condition held for none" in capsys.readouterr().err
    with pytest.raises(InputError, match="branching_factor=0; needed: 2 or more"):
        branching.run(benchmark, instances, [model], [], branching_factor=0)


@pytest.mark.parametrize("run", [sequential.run, batchwise.run], ids=["sequential", "batchwise"])
def test_the_other_runners_keep_whole_episodes_one_after_the_other(run, say) -> None:
    buffer, seen = EpisodeBuffer(), []

    class Watch(GameBenchmarkCallback):
        def on_game_step(self, game_master, game_instance, game_step) -> None:
            seen.append((game_instance["game_id"], game_step.response))

        def on_game_end(self, game_master, game_instance) -> None:  # as of earlier versions
            seen.append((game_instance["game_id"], "end"))

    learner = in_turn("yes", "no")
    benchmark, instances = GameBenchmark.load_from_spec(say.spec), GameInstances.from_game_spec(say.spec)
    run(benchmark, instances, [scripted(["yes"], "a"), learner, None], [EpisodeBufferCallback(buffer), Watch()])
    games = buffer.to_conversational_dataset(learner)
    assert [(row["messages"][-1]["content"], row["reward"]) for row in games] in (
        [("yes", 1.0), ("no", 0.0)], [("no", 0.0), ("yes", 1.0)],
    )  # fmt: skip
    numbers = [number for number, _ in seen]
    assert numbers == sorted(numbers) or numbers == sorted(numbers, reverse=True), "no step of another game between"
    assert [said for _, said in seen].count("end") == 2


def test_a_game_that_fails_gives_no_row_and_its_reason_to_the_callbacks(monkeypatch, capsys) -> None:
    game, found = SayGame(1, breaks=1), []
    monkeypatch.setattr(game_runs, "open_game", lambda spec, for_training: game)

    class Watch(GameBenchmarkCallback):
        def on_game_end(self, game_master, game_instance, exception=None, rewards=None) -> None:
            found.append((str(exception), rewards))

    buffer = BranchingEpisodeBuffer()
    run_branching(game, scripted(["yes"], "b"), [BranchingEpisodeBufferCallback(buffer), Watch()])
    assert found == [("the game broke", None)] * 2
    assert buffer.to_conversational_dataset("second").to_list() == []
    assert "warning: second has no turn in a game that ended with a score" in capsys.readouterr().err
    steps = EpisodeBuffer()
    with GameBenchmark.load_from_spec(game.spec) as benchmark:
        model, instances = scripted(["yes"], "a"), GameInstances.from_game_spec(game.spec)
        sequential.run(benchmark, instances, [model], [EpisodeBufferCallback(steps)])
    assert steps.to_conversational_dataset(model).to_list() == []
    assert (
        "a-t0.0 has no turn in a game that ended with a score; games failed, the last of them since the game broke"
        in (capsys.readouterr().err)
    )


def test_a_prompt_that_leaves_no_room_for_a_reply_fails_its_own_game_alone(say) -> None:
    def long_in_game_1(conversation, rng) -> str:
        if "second" in conversation.turns[0].text and next(turns) == 1:
            raise TooLong("a prompt has 300 tokens")
        return "yes"

    turns, buffer, found = iter([0, 1, 1, 0]), EpisodeBuffer(), []

    class Watch(GameBenchmarkCallback):
        def on_game_end(self, game_master, game_instance, exception=None, rewards=None) -> None:
            found.append(str(exception))

    learner = scripted(long_in_game_1, "a")
    benchmark, instances = GameBenchmark.load_from_spec(say.spec), GameInstances.from_game_spec(say.spec)
    batchwise.run(benchmark, instances, [learner], [EpisodeBufferCallback(buffer), Watch()])
    assert sorted(found) == ["None", "a prompt has 300 tokens"]
    assert [row["reward"] for row in buffer.to_conversational_dataset("first")] == [1.0]


def test_filters_are_by_game_experiment_and_id_and_an_empty_choice_is_refused(say) -> None:
    instances = GameInstances.from_game_spec(say.spec)
    rows = [{"game": "say", "experiment": "easy", "task_id": "1"}]
    assert [row["game_instance"]["game_id"] for row in instances.filter(to_instances_filter(rows))] == [1]
    assert len(GameInstances.from_game_spec([say.spec], sub_selector=to_sub_selector(rows))) == 1
    with pytest.raises(InputError, match=r"the filter leaves none of 2 instances \(say easy\)"):
        instances.filter(to_instances_filter([{**rows[0], "experiment": "0_high_en"}]))


def test_the_tree_environment_steps_all_branches_and_its_leaves_are_recorded(tmp_path) -> None:
    game, learner = SayGame(1), in_turn("yes", "no")
    trainer = Learns(scripted(["yes"], "a"), learner)
    trainer.add_callback(GameRecordCallback(tmp_path))
    env = GameBranchingEnv(
        game,
        trainer.players,
        tasks_of(game),
        task_iterations=1,
        branching_criteria=lambda e: trainer.is_teacher(e.current_player),
    )
    buffer = BranchingRolloutBuffer(env)
    trainer._collect_rollouts(env, None, buffer)
    [tree] = buffer.forest
    assert [[node.response for node in leaf.path] for leaf in tree.find_leaves()] == [
        ["yes", "yes", "yes"],
        ["yes", "no"],
    ]
    assert trainer.num_timesteps == 3, "of the branches together"
    [pair] = buffer.to_preference_dataset(learner)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("yes", "no")
    assert [row["reward"] for row in buffer.to_conversational_dataset(learner)] == [1.0, 0.0]
    folder = tmp_path / "a-t0.0--b-t0.0/rollout0001/say/0_easy/episode_3"
    assert sorted(path.parent.name for path in folder.rglob("scores.json")) == ["branch_0", "branch_1"]
    with pytest.raises(InputError, match="rollout_steps=None has no end"):
        trainer._collect_rollouts(GameEnv(game, [learner], tasks_of(game)), None)


def test_a_fork_is_at_the_same_point_and_leaves_the_game_as_it_is() -> None:
    game = SayGame(1)
    env = GameEnv(game, [in_turn("yes")], tasks_of(game))
    env.step("yes")
    fork = env.fork(0)
    assert fork.current_player.context == env.current_player.context
    assert fork.current_player.seed != env.current_player.seed
    fork.step("no")
    assert fork.is_done()
    assert not env.is_done()
    assert (env.master.current_player.game_role, env.master.current_round) == ("second", 0)


def test_the_games_of_a_runner_and_its_epochs_are_sampled_with_different_seeds(say) -> None:
    buffer = EpisodeBuffer()
    for _ in range(2):
        benchmark, instances = GameBenchmark.load_from_spec(say.spec), GameInstances.from_game_spec(say.spec)
        sequential.run(benchmark, instances, [scripted(["yes"], "a")], [EpisodeBufferCallback(buffer)])
    seeds = [step.player.seed for steps in buffer.episodes for step in steps]
    assert len(set(seeds)) == len(seeds) == 12


def test_a_point_with_two_branches_is_replayed_once_for_one_of_them(monkeypatch) -> None:
    game = SayGame(1)
    env = GameBranchingEnv(game, [scripted(["yes"], "a")], tasks_of(game))
    begun = []
    monkeypatch.setattr(game, "environment", lambda: begun.append(1) or SayGame.environment(game))
    while not env.is_done():
        player, contexts = env.observe()
        env.step(player(contexts))
    assert len(env.branches()) == len({id(leaf) for leaf in env.branches()}) == 8
    assert len(begun) == 7, "the first branch goes on in the environment that it came from"
    env.reset()
    assert (env.env.branch, len(begun)) == ("", 8)
