"""The tables that `lmgym demo` ends with: the scorer, its opinion of some replies, and what PPO changed."""

import json
import os
import sys
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path

from lmgym.console import CleanConsole, on_terminal, say
from lmgym.report.page import REPORT
from lmgym.scoring.diversity import distinct_2, distinct_openings


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> None:
    """Prints a table whose first `text` columns are text and whose others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < text else "right")
    for row in rows:
        table.add_row(*row)
    CleanConsole(width=100).print(table)


def compare_scorer(world: Path, scorer: Path) -> None:
    """Prints the scorer's correlation with the hidden utility, and that of baselines and the oracle."""
    from lmgym.apps.world.baselines import baselines

    metrics = json.loads((scorer / "evaluation.json").read_text())["metrics"]
    correlations = baselines(world)
    rows = {
        "length of the reply": correlations["length"],
        "bag of words": correlations["bag_of_words"],
        "the scorer": metrics["gold/gold_spearman"],
        "oracle: the utility's own features, fitted to the same traces": correlations["oracle"],
    }
    title = "Spearman with the hidden utility, for held-out users"
    show_table(title, ("", "value"), [(name, f"{value:.3f}") for name, value in rows.items()])


def show_gains(ppo: Path) -> dict[str, dict[str, float]]:
    """Prints PPO's reward before and after, the hidden utility, which PPO never saw, and how varied the replies are.

    Returns the diversity before and after.
    """
    lines = [json.loads(line) for line in (ppo / "metrics.jsonl").read_text().splitlines()]
    before, after = lines[0], lines[-1]
    metrics = {
        "reward: the scorer, in standard deviations": "eval/reward/mean",
        "hidden utility, never optimised": "eval/eval_scorer",
        "tokens per reply": "eval/rollout/reply_tokens",
    }
    rows = [(name, f"{before[key]:.3f}", f"{after[key]:.3f}") for name, key in metrics.items()]
    rows.append(("KL to the SFT policy, nats per reply", "0", f"{after['kl/reference']:.3f}"))
    varied, later = (diversity_of(read_replies(ppo, place)) for place in (0, -1))
    rows += [(name, f"{value:.3f}", f"{later[name]:.3f}") for name, value in varied.items()]
    show_table("PPO: replies to held-out prompts", ("", "before", "after"), rows)
    return {"before": varied, "after": later}


def read_replies(ppo: Path, place: int) -> list[str]:
    """The first rank's replies to held-out prompts at an evaluation: 0 is before step 1, -1 the last."""
    file = sorted((ppo / "samples").glob("evaluation-*.jsonl"))[place]
    return [json.loads(line)["reply"] for line in file.read_text().splitlines()]


def diversity_of(replies: Sequence[str]) -> dict[str, float]:
    """Measures of how varied replies are, by their names in the table."""
    return {"distinct openings, share": distinct_openings(replies), "distinct-2": distinct_2(replies)}


def show_report(run: Path) -> None:
    """Names a run's report, and opens it in the user's browser where there is a screen."""
    path = (run / REPORT).resolve()
    say(f"What the training did, to look at: {path}")
    has_screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if has_screen and on_terminal():  # without a screen a text browser would take over the terminal
        webbrowser.open(path.as_uri())


def show_scores(world: Path, model: Path, seed: int) -> None:
    """Prints the scores and the hidden utility of four replies to one message."""
    import pyarrow.parquet as pq

    from lmgym.apps.world.world import World
    from lmgym.messages import from_transcript
    from lmgym.scoring.scorers import HFScorer

    group = pq.read_table(world / "kwise.parquet").slice(0, 1).to_pylist()[0]
    conversations = [from_transcript(group["prompt"])] * len(group["replies"])
    scores = HFScorer.load(model).score(conversations, group["replies"]).tolist()
    worth = World(seed).utility(conversations, group["replies"]).tolist()
    ranking = sorted(zip(scores, worth, group["replies"], strict=True), reverse=True)
    rows = [(reply, f"{score:.3f}", f"{value:+.2f}") for score, value, reply in ranking]
    show_table(group["prompt"], ("reply", "score", "hidden utility"), rows)
