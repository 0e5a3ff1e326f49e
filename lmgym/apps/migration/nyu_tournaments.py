"""An experiment of NYU's debate project as a tournament here: a Python file, and the command that plays it."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.nyu_agents import Agent, as_player, read_agent
from lmgym.apps.migration.nyu_entries import Entry, Settings, file_name, transcripts_at
from lmgym.apps.migration.nyu_files import Parts, literal, write_file
from lmgym.errors import InputError, shown
from lmgym.origin import names_code_or_address

FORMATS = {
    "default_debate": ("debate", 2),
    "default_consultancy": ("consultancy", 1),
    "open_debate": ("open_debate", 1),
    "empty_round": ("judge_alone", 0),
}
"""the format here and the number of debaters, by theirs"""
TOURNAMENTS = {name: name for name in ("round_robin", "self_play_only", "custom", "capped_round_robin", "replication")}
CHOSEN = ("custom", "capped_round_robin")
"""kinds of tournaments that play the pairs of custom_matchups"""
PAIRS = {"self_play_only": "self_play", "capped_round_robin": "capped"}
"""`--pairs` by a kind of theirs; the others' pairs are written out"""
BRANCHING = {"none": "", "full": "full", "half": "half", "single_random": "one"}
QUESTIONS = {"quality": "quality", "quality_debates": "debates", "quality_consultancy": "debates"}
"""how a data set of theirs is read"""
SPLITS = {"train": "train", "val": "dev", "test": "test"}
OLD_FLAGS = ("test", "local", "log_level", "suppress_graphs", "start_time", "force_save_results")
"""flags of run_debate that change nothing here"""
SENTENCES = {
    "annotations_classifier_file_path": "there is no classifier of annotations",
    "prompt_config.file_path": "wordings are PROMPTS of the file; lmgym from nyu PROMPTS.yaml NAME writes theirs",
    "prompt_config.default_prompt_name": "theirs takes the set of its speech_structure, whatever this says",
    "prompt_config.is_memorized": "give questions whose text is their title",
    "dataset.flip_sides": "--sides flipped plays both answers",
    "dataset.shuffle_deterministically": "questions are in the order of their file",
    "dataset.combine_train_and_val": "one file with the rows of both",
    "dataset.supplemental_file_paths": "one file of questions",
    "dataset.train_file_path": "of the split alone",
    "dataset.val_file_path": "of the split alone",
    "dataset.test_file_path": "of the split alone",
}
NO_MODEL = {"random": "RandomJudge()", "stub_llm": "RandomJudge()", "deterministic": "ScriptedPlayer(name_first)"}
"""judges of theirs without a model"""


def translate_experiment(entry: Entry) -> list[Translation]:
    """The commands that play an experiment, one for each run whose rounds are recorded. Raises InputError."""
    lines: list[str] = []
    agents = entry.values["agents"]
    if not isinstance(agents, Mapping) or not isinstance(agents.get("judge"), Mapping):
        raise InputError(f"{shown(entry.name)}: agents={display(agents)}; needed: debaters and judge")
    debaters: list[Agent] = []
    given = agents.get("debaters") or []
    if not isinstance(given, list):
        raise InputError(f"{shown(entry.name)}: debaters={display(given)}; needed: a list of debaters")
    for one in given:
        if not isinstance(one, Mapping) or not isinstance(one.get("model_settings"), Mapping):
            raise InputError(f"{shown(entry.name)}: a debater is {display(one)}; needed: its model_settings")
        settings = Settings(one, f"a debater of {entry.name}")
        debaters.append(read_agent(settings, lines, [debater.name for debater in debaters]))
        lines += [f"{name}={display(value)}: no equivalent" for name, value in settings.left.items()]
    lines += _renamed(given, debaters)
    settings = Settings(agents["judge"], f"the judge of {entry.name}")
    judge = read_agent(settings, lines, is_judge=True)
    lines += [f"{name}={display(value)}: no equivalent" for name, value in settings.left.items()]
    rest = Settings({name: value for name, value in entry.values.items() if name != "agents"}, entry.name)
    return _Experiment(entry, debaters, judge, rest, lines).commands()


def _only(value: Any) -> Any:
    """The one item of a list with one, or else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _renamed(given: Sequence[Mapping[str, Any]], debaters: Sequence[Agent]) -> list[str]:
    """A line on debaters whose name is another one than their alias."""
    aliases = [str(one["model_settings"].get("alias")) for one in given]
    found = [(alias, one.name) for alias, one in zip(aliases, debaters, strict=True) if alias != one.name]
    if not found:
        return []
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    alias, name = found[0]
    return [
        f"alias={display(alias)} is {name}{others}: a name has letters, digits, '.', '_' and '-', and is one debater's"
    ]


class _Experiment:
    """The settings of an experiment on their way into a file and a command."""

    def __init__(self, entry: Entry, debaters: list[Agent], judge: Agent, left: Settings, lines: list[str]) -> None:
        self.entry, self.debaters, self.judge, self.left, self.lines = entry, debaters, judge, left, lines
        self.found = Translation(file_name(entry), program="lmgym debate", lines=lines)
        self.config: dict[str, Any] = {"name": self.found.command.removesuffix(".py")}
        self.format, self.number = left.one_of("speech_structure", FORMATS, "default_debate")
        self.rounds = left.take("num_speeches", 1)
        self.kind = left.one_of("tournament.tournament_type", TOURNAMENTS, "round_robin")
        self.matchups = self._matchups()
        self.recorded = self._recordings()

    def commands(self) -> list[Translation]:
        """The file with the first command, and the commands for further recordings."""
        self._sides()
        self._pairs()
        self._temperature()
        self._limits()
        self._flags()
        parts = Parts(self.config, self._questions(), self._players(), self._judge(), self.judge.name, self._format())
        for name, value in self.left.left.items():
            if value not in (False, [], {}):
                self.lines.append(f"{name}={display(value)}: {SENTENCES.get(name, 'no equivalent')}")
        self.found.before.append(write_file(self.found.command, parts, self._docstring()))
        return [self.found, *self._further()]

    def _docstring(self) -> str:
        return re.sub(r"[^A-Za-z0-9 .,_-]", "", self.entry.name)[:80].strip() or "An entry"

    # --- recorded rounds

    def _recordings(self) -> list[str]:
        """The places of recorded rounds, if those are judged anew; "" is one that the user has to give."""
        if self.kind == "replication":
            paths = self.left.left.pop("tournament.replication_file_paths", None)
            if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
                raise InputError(f"replication_file_paths={display(paths)}; needed: the beginnings of files' names")
            return [transcripts_at(path) for path in paths]
        playing = self._playing()
        if not any(debater.is_recorded for debater in playing):
            return []
        if not all(debater.is_recorded for debater in playing):
            raise InputError(
                f"{shown(self.entry.name)}: debaters with offline_file_path or is_human beside others; needed: either "
                "kind, as recorded rounds are judged anew and not played on"
            )
        for first, second in self._meetings():
            if first.recorded != second.recorded:
                raise InputError(
                    f"{shown(self.entry.name)}: {first.name} and {second.name} meet with speeches of two recorded "
                    "runs; needed: tournament_type=self_play_only, which judges each run, or debaters of one run"
                )
        paths = dict.fromkeys(debater.recorded for debater in playing)
        return [path and transcripts_at(path) for path in paths]

    def _further(self) -> list[Translation]:
        """The commands for recordings after the first, into folders of their own."""
        found = []
        for number, path in enumerate(self.recorded[1:], 2):
            flags = self.found.flags | {
                "transcripts": path,
                "output": f"outputs/debates/{self.config['name']}_{number}",
            }
            found.append(Translation(self.found.command, flags, self.found.asked, program="lmgym debate"))
        return found

    # --- the schedule

    def _sides(self) -> None:
        flip, alternate = self.left.take("flip", False), self.left.take("alternate", False)
        if flip and alternate:
            raise InputError(f"{shown(self.entry.name)}: flip and alternate are true; needed: one of the two")
        if not self.recorded:
            self.config["sides"] = "flipped" if flip else "alternate" if alternate else "fixed"

    def _matchups(self) -> list[tuple[Agent, Agent]]:
        """The pairs of custom_matchups. Raises InputError for others than debaters, and where none are read."""
        given = self.left.left.pop("tournament.custom_matchups", None) or []
        if not isinstance(given, list):
            raise InputError(f"{shown(self.entry.name)}: custom_matchups={display(given)}; needed: pairs of aliases")
        if given and self.kind not in CHOSEN:
            raise InputError(
                f"{shown(self.entry.name)}: custom_matchups with tournament_type={self.kind}; needed: "
                f"{' or '.join(CHOSEN)}, which read them"
            )
        if self.kind == "custom" and not given:
            raise InputError(f"{shown(self.entry.name)}: tournament_type=custom without custom_matchups; needed: pairs")
        return [self._matchup(pair) for pair in given]

    def _matchup(self, pair: Any) -> tuple[Agent, Agent]:
        aliases = [one["model_settings"].get("alias") for one in self.entry.values["agents"]["debaters"]]
        debaters = {str(alias): debater for alias, debater in zip(aliases, self.debaters, strict=True)}
        if not isinstance(pair, list) or len(pair) != 2 or not {str(one) for one in pair} <= debaters.keys():
            raise InputError(
                f"{shown(self.entry.name)}: a custom matchup is {shown(str(pair))}; needed: two debaters' aliases"
            )
        return debaters[str(pair[0])], debaters[str(pair[1])]

    def _playing(self) -> list[Agent]:
        """The debaters of the rounds: of chosen pairs where two of them meet, else all."""
        if not self.matchups or self.number < 2:
            return self.debaters
        names = {debater.name for pair in self.matchups for debater in pair}
        return [debater for debater in self.debaters if debater.name in names]

    def _meetings(self) -> list[tuple[Agent, Agent]]:
        """The pairs of two debaters that meet; none where a debater speaks alone."""
        if self.number < 2:
            return []
        if self.matchups:
            return self.matchups
        itself = [(debater, debater) for debater in self.debaters]
        if self.kind == "self_play_only" or len(self.debaters) < 2:
            return itself
        pairs = list(combinations(self.debaters, 2))
        return pairs + itself if self.left.left.get("enable_self_debate") is True else pairs

    def _pairs(self) -> None:
        """The schedule's pairs, which mean something where two debaters are in a round."""
        meetings = self._meetings()
        enabled = self.left.take("enable_self_debate", False)
        if self.recorded or self.number < 2 or len(self.debaters) < 2:
            if self.matchups:
                self.lines.append("custom_matchups: no pair of two debaters meets in these rounds")
            return
        if self.kind != "round_robin" or enabled:
            self.config["pairs"] = PAIRS.get(self.kind, "custom")
        if self.matchups or (self.kind == "round_robin" and enabled):
            self.config["custom"] = tuple(f"{first.name}:{second.name}" for first, second in meetings)
        if self.kind in ("round_robin", "custom") and len(meetings) > len(self.debaters):
            self.lines.append(
                f"{len(meetings)} pairs: all of them are played; run_debate plays the first {len(self.debaters)}"
            )

    # --- what the file names

    def _questions(self) -> str:
        kind = self.left.one_of("dataset.dataset_type", QUESTIONS | {"scratchpad_quality_debates": ""}, "quality")
        split = self.left.one_of("dataset.split_type", SPLITS, "train")
        given = self.left.find("dataset.full_dataset_file_path", str)
        theirs = {"dev": "val"}.get(split, split)
        path = self.left.find(f"dataset.{theirs}_file_path", str) or given
        topics = self.left.take("prompt_config.use_hardcoded_topics", False)
        hardcoded = [
            self.left.left.pop(f"prompt_config.hardcoded_topic_config.{name}", None) for name in ("topic", "positions")
        ]
        previous, merges = (
            self.left.left.pop("previous_run.file_path", None),
            self.left.take("previous_run.merge_results", False),
        )
        replicate = self.left.take("previous_run.replicate_topics", False) and not self.recorded
        for flag, wanted in (("previous_run", replicate), ("merge_results", merges)):
            if wanted and isinstance(path_of_run := _only(previous), str):
                self.found.flags[flag] = transcripts_at(path_of_run)
            elif wanted:
                self.found.ask(flag, f"file_path={display(previous)}: one file or folder of transcripts")
        if self.recorded:
            if path and not names_code_or_address(path) and self.found.asked.pop("transcripts", None):
                self.found.flags["transcripts"] = path  # people's debates, of which the rounds are
            return "recorded"
        if topics:
            topic, positions = hardcoded
            if not isinstance(topic, str) or not isinstance(positions, list) or len(positions) != 2:
                raise InputError(
                    f"{shown(self.entry.name)}: hardcoded_topic_config has no topic with two positions; needed: both"
                )
            return f"[Question({literal(topic)}, ({literal(str(positions[0]))}, {literal(str(positions[1]))}))]"
        if replicate:
            return "previous"
        if path and not names_code_or_address(path):
            self.found.flags["dataset"] = path
        else:
            file = "QuALITY.v1.0.1.htmlstripped." + split if kind == "quality" else "a JSON or JSONL file of debates"
            self.found.ask("dataset", f"split_type={theirs}: {file}, from their data/datasets")
        return kind or "debates"

    def _models(self) -> list[str]:
        """The models of the debaters, each once, as words for --model; a name in capitals for one to fill in."""
        return list(dict.fromkeys(debater.model or debater.ask for debater in self.debaters if debater.needs_model))

    def _players(self) -> dict[str, str]:
        models = self._models()
        shared = len(models) == 1
        if shared:
            debater = next(one for one in self.debaters if one.needs_model)
            if debater.ask:
                self.found.ask("model", debater.ask)
            else:
                self.found.flags["model"] = debater.model
        playing = {debater.name for debater in self._playing()}
        players = {}
        for debater in self.debaters:
            if debater.is_recorded and not self.recorded:  # beside others, in no pair
                if self.kind == "capped_round_robin":
                    raise InputError(
                        f"{shown(self.entry.name)}: {debater.name} is recorded and in no pair, but the parts of a "
                        "capped round robin count it; needed: the debaters without it"
                    )
                self.lines.append(f"{debater.name} is in no matchup, and is left out")
                continue
            word = literal(debater.model)
            if debater.needs_model and debater.ask and not shared:
                word = literal(f"MODEL_OF_{debater.name}")
                self.lines.append(f"fill in {word} in the file: {debater.ask}")
            one = len({one.temperature for one in self.debaters if one.needs_model}) == 1
            temperature = "config.temperature" if one else repr(debater.temperature)
            players[debater.name] = as_player(
                debater, "config.model" if shared else word, temperature, debater.name in playing
            )
            if debater.prompt:
                self.lines.append(
                    f"override_prompt={display(debater.prompt)}: a debater's own wordings are in the file, as "
                    f"Tournament(..., own_prompts={{{literal(debater.name)}: PROMPTS | {{...}}}})"
                )
        if self.recorded:  # whose rounds have their debaters' names
            players = {"recorded": "RecordedPlayer(recorded)"}
        return {} if self.format == "judge_alone" else players

    def _temperature(self) -> None:
        found = {debater.temperature for debater in self.debaters if debater.needs_model}
        if len(found) == 1:
            self.config["temperature"] = found.pop()

    def _judge(self) -> str:
        judge = self.judge
        chooses = self.format == "open_debate" and judge.kind == "repetitive"
        if judge.kind in NO_MODEL or chooses:
            return NO_MODEL.get(judge.kind, NO_MODEL["deterministic"])
        if judge.needs_model and not judge.ask:
            self.found.flags["judge_model"] = judge.model
        else:
            why = judge.ask or f"model_type={judge.kind} has no equivalent: a model, or letter:X, which counts a letter"
            self.found.ask("judge_model", why)
        if judge.kind == "anthropic" or judge.notes:
            if any(debater.best_of for debater in self.debaters):
                raise InputError(
                    f"{shown(self.entry.name)}: best_of_n before a judge that writes; needed: a judge that gives "
                    "probabilities, without a scratchpad"
                )
            return f"model_player(config.judge_model, {judge.temperature!r}, config.concurrency)"
        return "model_judge(config.judge_model, PROMPTS, config.concurrency)"

    def _format(self) -> str:
        converts = self.left.take("convert_to_double_consultancy", False)
        if converts:
            if not self.recorded or self.format != "debate":
                raise InputError(
                    f"{shown(self.entry.name)}: convert_to_double_consultancy needs default_debate and debaters "
                    f"of model_type offline; found {self.format} of {'recorded' if self.recorded else 'other'} debaters"
                )
            self.found.flags["convert"] = "double"
            return f"double_consultancy(rounds={self.rounds})"
        if self.format == "judge_alone":
            return "judge_alone()"
        if self.format == "open_debate":
            return "CHOICE"
        found = f"{self.format}(rounds={self.rounds})"
        notes = {debater.notes for debater in self.debaters}
        if kept := [one for one in notes if one]:
            limit, shown_to_judge = kept[0]
            words = [*([f"tokens={limit}"] if limit else []), *(["shown=True"] if shown_to_judge else [])]
            found += f".with_scratchpads({', '.join(words)})"
            if len(notes) > 1:
                self.lines.append("scratchpad: all debaters of a round make notes here, by the settings of the first")
        if self.judge.notes and self.judge.kind in NO_MODEL:
            self.lines.append("scratchpad of the judge: one without a model makes no notes")
        elif self.judge.notes:
            found += ".with_reasoning()"
        return found

    def _limits(self) -> None:
        for key, of in (("speech_tokens", self.debaters), ("judge_tokens", [self.judge])):
            if limits := {agent.tokens for agent in of if agent.tokens}:
                self.config[key] = max(limits)
                if len(limits) > 1:
                    self.lines.append(f"max_new_tokens: one limit for all debaters, {max(limits)}")

    def _flags(self) -> None:
        if branching := self.left.one_of("multi_round_branching", BRANCHING, "none"):
            self.config["branching"] = branching
        if (batch := self.left.take("batch_size", 1)) != 1:
            self.config["batch"] = batch
        if self.recorded:
            if self.recorded[0]:
                self.found.flags["transcripts"] = self.recorded[0]
            else:
                self.found.ask("transcripts", "is_human: the JSON or JSONL file of debates between people")
        for name, value in self.entry.flags.items():
            if name == "num_iters":
                if type(value) is not int or value < 1:
                    raise InputError(f"--num_iters {display(value)}; needed: a number of rounds, from 1")
                if self.config.get("pairs") == "capped":
                    self.lines.append("num_iters: a capped round robin plays the questions of each pair's part")
                else:
                    self.found.flags["rounds" if self.recorded else "questions"] = value
            elif name not in OLD_FLAGS and name != "configuration":
                raise InputError(
                    f"--{name} is no flag of run_debate; needed: --num_iters N, or flags behind lmgym debate"
                )
