"""The evaluation of a run in rounds: replies to held-out prompts against those of the starting policy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from lmgym.console import say
from lmgym.data.prompts import Task
from lmgym.distributed.ranks import rank
from lmgym.runs.run import Run
from lmgym.scoring.alarm import Reading
from lmgym.statistics import share
from lmgym.text import reply_text, to_transcript
from lmgym.training.probes import Report
from preferences.iterative.replies import Answerer, Answers, append_answers, read_answers
from preferences.iterative.rounds import ReferenceSums

START = "rounds/start.jsonl"
EVAL_SEED = 2**62


class RoundProbe:
    """The win rate against the starting policy, the KL to it, and the scores and lengths of replies.

    The same random numbers draw the replies at each evaluation. The starting policy's are drawn once, before step 1.
    """

    loss = ""

    def __init__(
        self,
        tasks: Sequence[Task],
        answerer: Answerer,
        own: ReferenceSums,
        start: ReferenceSums,
        run: Run,
        updates_per_round: int,
    ) -> None:
        self.tasks, self.answerer, self.own, self.start, self.run = tasks, answerer, own, start, run
        self.updates_per_round = updates_per_round
        self.report = Report({}, {})
        self.rows: list[dict] = []
        """replies of the last evaluation, for samples/"""
        self.first: list[Answers] = []
        self.last: list[Answers] = []
        """those of the last evaluation"""
        judge = answerer.judge
        names = [*judge.scorers, *judge.monitor]
        by = next(iter(judge.monitor), "the scorers")
        self.shown: Mapping[str, str] = {
            "win_rate": f"win rate against the start, by {by}",
            **{f"score/{name}": f"mean score by {name}" for name in names},
            "kl": "KL to the start, nats a reply",
            "tokens": "mean tokens of a reply",
            "ended": "replies that ended by themselves",
        }

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """A tie is half a win. The KL is the mean log-ratio of the replies, an unbiased estimate. Collective."""
        file = self.run.folder / START
        places = range(len(self.tasks))
        new = self.answerer.answer(self.tasks, places, 1, EVAL_SEED, None, self.run, with_monitor=True)
        if not self.first:
            self.first = read_answers(file)
            if len(self.first) < len(new):
                self.first = new
                file.unlink(missing_ok=True)
                append_answers(file, new, self.run)
        wins = (np.sign(self._values(new) - self._values(self.first)) + 1) / 2
        rows = [one.rows([0]) for one in new]
        ratios = self.own(rows, model, device) - self.start(rows, model, device)
        own = Report.of("win_rate", share(wins), "prompt")
        metrics = {
            **own.metrics,
            **{f"score/{name}": float(np.mean([one.scores[name][0] for one in new])) for name in new[0].scores},
            "kl": float(ratios.mean()),
            "tokens": float(np.mean([len(one.ids[0]) for one in new])),
            "ended": float(np.mean([one.finish[0] != "length" for one in new])),
        }
        self.rows, self.last = [self._row(one) for one in new], new
        readings = {f"score/{name}": self._reading([one.scores[name][0] for one in new]) for name in new[0].scores}
        self.report = replace(own, metrics=metrics, readings=readings)
        return metrics

    def _values(self, answers: Sequence[Answers]) -> np.ndarray:
        """The numbers that the win rate compares: scores of the monitor, else the weighted sums."""
        name = next(iter(self.answerer.judge.monitor), None)
        return np.array([one.scores[name][0] if name else one.totals[0] for one in answers])

    def look(self) -> tuple[Reading, Reading, float] | None:
        """The reward and the monitor's score at the last evaluation, and the spread of the latter; None without one."""
        if not self.answerer.judge.monitor:
            return None
        scores = self._values(self.last)
        return self._reading([one.totals[0] for one in self.last]), self._reading(scores.tolist()), float(scores.std())

    def _reading(self, values: Sequence[float]) -> Reading:
        """Of the replies to all prompts, in their order."""
        return Reading.of(values, [str(number) for number in range(len(values))])

    def _row(self, answers: Answers) -> dict:
        return {
            "row": f"held-out prompt {answers.place + 1}",
            "prompt": to_transcript(self.tasks[answers.place]["prompt"]),
            "reply": reply_text(answers.texts[0]),
            "tokens": len(answers.ids[0]),
            "finish": answers.finish[0],
            "scores": {name: values[0] for name, values in answers.scores.items()},
        }

    def say(self, update: int) -> None:
        """Prints the line of a round."""
        if rank() == 0:
            say(f"round {self.round_of(update):g}: {line(self.report.metrics)}")

    def round_of(self, update: int) -> float:
        """The number of rounds after so many updates."""
        whole, rest = divmod(update, self.updates_per_round)
        return update / self.updates_per_round if rest else whole


def line(metrics: Mapping[str, float]) -> str:
    """The figures of a round, in words."""
    low, high = metrics.get("win_rate_low"), metrics.get("win_rate_high")
    interval = " (–)" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    scores = ", ".join(f"{n.removeprefix('score/')} {v:.3f}" for n, v in metrics.items() if n.startswith("score/"))
    return (
        f"win rate {metrics['win_rate']:.2f}{interval}, {scores}, KL {metrics['kl']:.2f}, "
        f"{metrics['tokens']:.0f} tokens a reply"
    )
