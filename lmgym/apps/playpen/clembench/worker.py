"""The other end of the bridge: plays episodes of one game of clembench. Runs in an environment that has clemcore.

`python worker.py FOLDER GAME`. Imports nothing of lmgym. Lines of JSON, a message each (see bridge.py):
- in: {"do": "start", "episode", "experiment", "instance", "players", "seed"}, {"do": "reply", "episode", "text"},
  {"do": "stop", "episode"}, {"do": "score", "episode", "experiment", "instance", "interactions"}
- out: {"ready"}, {"episode", "seat", "messages"}, {"episode", "over": {scores, interactions, requests, error,
  scorer_error}}

Each episode is a thread, whose model hands out the messages that it is asked with, and waits: games that ask their
players within `step`, or that have only `play`, need nothing special. One thread runs at a time, and each has its own
state of the global random generators, so that an episode depends on its seed and on the replies alone.
"""

import contextlib
import importlib
import json
import os
import queue
import random
import sys
import threading
import traceback
from typing import Any

PROGRAMMED = "mock"


class Stopped(BaseException):
    """The episode is no longer wanted. Not an Exception: games catch those."""


class Channel:
    """Lines out on what was stdout; whatever a game prints goes to stderr."""

    def __init__(self) -> None:
        self.lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self.lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        line = json.dumps(message)
        with self.lock:
            self.lines.write(line + "\n")
            self.lines.flush()


class RandomState:
    """The state of the global generators of one episode, which `running` puts in place for as long as it runs."""

    turn = threading.Lock()

    def __init__(self, seed: int) -> None:
        self.python = random.Random(seed).getstate()
        self.numpy: Any = None
        if numpy := sys.modules.get("numpy"):
            self.numpy = numpy.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def running(self):
        """Only one episode is within it at a time."""
        with self.turn:
            self.restore()
            try:
                yield
            finally:
                self.save()

    @contextlib.contextmanager
    def waiting(self):
        """Within `running`: lets others run."""
        self.save()
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()
            self.restore()

    def save(self) -> None:
        """Keep the state."""
        self.python = random.getstate()
        if self.numpy is not None:
            self.numpy = sys.modules["numpy"].random.get_state()

    def restore(self) -> None:
        """Set the state."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


class Episode:
    """One episode in a thread of its own."""

    def __init__(self, channel: Channel, benchmark: Any, game: str, order: dict[str, Any]) -> None:
        self.channel, self.benchmark, self.game, self.order = channel, benchmark, game, order
        self.number = order["episode"]
        self.replies: queue.SimpleQueue = queue.SimpleQueue()
        self.random = RandomState(int(order["seed"]))
        self.recorder: Any = None
        self.calls: list[Any] = []
        self.thread = threading.Thread(target=self.run, name=f"episode {self.number}", daemon=True)
        self.thread.start()

    def ask(self, seat: int, messages: list[dict[str, Any]]) -> str:
        """The reply to messages, from the other end."""
        self.channel.send({"episode": self.number, "seat": seat, "messages": merged(messages)})
        with self.random.waiting():
            reply = self.replies.get()
        if reply is None:
            raise Stopped
        return reply

    def run(self) -> None:
        """Play, score and report."""
        over: dict[str, Any] = {"scores": None, "error": "", "scorer_error": ""}
        try:
            with self.random.running():
                try:
                    self.play()
                except Exception as error:
                    over["error"] = described(error)
                over |= self.records()
                if not over["error"]:
                    over |= scored(self.benchmark, self.order, over["interactions"])
        except Stopped:
            return
        self.channel.send({"episode": self.number, "over": over})

    def play(self) -> None:
        """As clemcore's benchmark does."""
        backends = importlib.import_module("clemcore.backends")
        recorders = importlib.import_module("clemcore.clemgame.recorder")
        models = make_models(backends, self)
        experiment, instance = self.order["experiment"], self.order["instance"]
        infos = {number: model.model_spec.to_dict() for number, model in enumerate(models)}
        given = (
            self.game,
            experiment.get("name", ""),
            instance.get("game_id"),
            "--".join(m.name for m in models),
            infos,
        )
        master = self.benchmark.create_game_master(experiment, models)
        if hasattr(recorders, "DefaultGameRecorder"):  # of clemcore 2
            self.recorder = recorders.DefaultGameRecorder(*given)
            master.game_recorder = self.recorder
            master.setup(**instance)
            master.play()
        else:
            self.recorder = recorders.GameInteractionsRecorder(*given)
            master.setup(**instance)
            for player in master.get_players():
                self.recorder.log_player(player.name, player.game_role, player.model.name)
                self.calls.append(calls_of(recorders, player))
            master.register(self.recorder)
            step_through(master)

    def records(self) -> dict[str, Any]:
        """Interactions and requests, as a file would have them."""
        if self.recorder is None:
            return {"interactions": None, "requests": None}
        calls = [one["call"] for recorder in self.calls for one in recorder.requests["calls"]]
        requests = getattr(self.recorder, "requests", sorted(calls, key=lambda call: call["timestamp"]))
        return json.loads(json.dumps({"interactions": self.recorder.interactions, "requests": requests}, default=str))


def calls_of(recorders: Any, player: Any) -> Any:
    """The recorder of a player's requests, in clemcore 3."""
    names = {"player_name": player.name, "game_role": player.game_role, "model_name": player.model.name}
    recorder = recorders.EventCallRecorder("", experiment_name="", game_id=0, **names)
    player.register(recorder)
    return recorder


def step_through(master: Any) -> None:
    """A whole game of clemcore 3, whose masters only step, but for its first ones."""
    if hasattr(master, "play"):
        master.play()
        return
    master.before_game()
    done = False
    while not done:
        player = master.current_player
        context = master.get_context_for(player)
        if context is None:  # aborted before anybody's turn
            return
        done, _ = master.step(player(context))


def scored(benchmark: Any, order: dict[str, Any], interactions: dict[str, Any]) -> dict[str, Any]:
    """The scores of the game's own scorer, or its failure."""
    try:
        scorer = benchmark.create_game_scorer(order["experiment"], order["instance"])
        scorer.compute_scores(json.loads(json.dumps(interactions)))
        return {"scores": json.loads(json.dumps(scorer.scores, default=plain))}
    except Exception as error:
        return {"scorer_error": described(error)}


def make_models(backends: Any, episode: Episode) -> list[Any]:
    """A model for each seat: one that asks the other end, or clemcore's own for programmed players."""

    class Asking(backends.Model):
        """Hands its messages out and waits for the reply."""

        def __init__(self, spec: Any, seat: int) -> None:
            super().__init__(spec)
            self.seat = seat

        def generate_response(self, messages: list[dict[str, Any]]) -> tuple[Any, Any, str]:
            reply = episode.ask(self.seat, messages)
            return messages, {"choices": [{"message": {"role": "assistant", "content": reply}}]}, reply

    models = []
    for seat, name in enumerate(episode.order["players"], 1):
        spec = backends.ModelSpec.from_dict({"model_name": name})
        model = backends.CustomResponseModel(spec) if name == PROGRAMMED else Asking(spec, seat)
        model.set_gen_args(temperature=0.0, max_tokens=300)
        models.append(model)
    return models


def merged(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Role and text of the messages; neighbours of one role become one, separated by a blank line."""
    rows: list[dict[str, str]] = []
    for message in messages:
        role, text = message["role"], str(message["content"])
        if rows and rows[-1]["role"] == role:
            rows[-1]["content"] += f"\n\n{text}"
        else:
            rows.append({"role": role, "content": text})
    return rows


def described(error: BaseException) -> str:
    """An error with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def plain(value: Any) -> Any:
    """A number of numpy as Python's."""
    return value.item() if hasattr(value, "item") else str(value)


def load_game(folder: str, game: str) -> Any:
    """(the game's benchmark, clemcore's version), with its modules left in place, since this process has one game."""
    registry = importlib.import_module("clemcore.clemgame.registry")
    benchmarks = importlib.import_module("clemcore.clemgame.benchmark")
    [spec] = [spec for spec in registry.GameSpec.from_directory(folder) if spec.game_name == game]
    for path in (os.path.dirname(folder), folder):
        sys.path.insert(0, path)
    if load := getattr(benchmarks, "load_from_spec", None):
        return load(spec, do_setup=False)
    return benchmarks.GameBenchmark.load_from_spec(spec)  # of clemcore 3


def serve(channel: Channel, benchmark: Any, game: str) -> None:
    """Answer lines until there are no more."""
    episodes: dict[int, Episode] = {}
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "start":
                episodes[order["episode"]] = Episode(channel, benchmark, game, order)
            case "reply":
                episodes[order["episode"]].replies.put(order["text"])
            case "score":
                over = {"scores": None, "interactions": None, "requests": None}
                over |= scored(benchmark, order, order["interactions"])
                channel.send({"episode": order["episode"], "over": over})
            case "stop":
                if episode := episodes.pop(order["episode"], None):
                    episode.replies.put(None)


def main() -> None:
    """Load the game and serve."""
    channel = Channel()
    folder, game = sys.argv[1:3]
    try:
        with load_game(folder, game) as benchmark:
            version = importlib.import_module("importlib.metadata").version("clemcore")
            channel.send({"ready": {"game": game, "clemcore": version}})
            serve(channel, benchmark, game)
    except Exception as error:
        channel.send({"ready": None, "error": described(error)})
        traceback.print_exception(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
