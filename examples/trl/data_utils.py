"""Records of played games as rows for SFT: python3 examples/trl/data_utils.py RESULTS -> examples/trl/results.jsonl.

One row a player's view: `messages`, and `meta` with game, experiment, task_id, game_id, player_name, game_role, model
and outcome.
"""

import argparse
from collections import Counter
from pathlib import Path

from lmgym.apps.games.dialogue.rows import write_dialogue_rows
from lmgym.console import say
from lmgym.runs.launch import launch

ROWS = Path(__file__).with_name("results.jsonl")


def create_conversational_dataset_for(top_dir: str) -> None:
    """Writes the rows of all interactions below a folder."""
    rows = write_dialogue_rows(top_dir, ROWS)
    outcomes = Counter(str(row["meta"]["outcome"]) for row in rows)
    say(f"{ROWS}: {len(rows)} rows, {', '.join(f'{number} {outcome}' for outcome, number in outcomes.most_common())}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("top_dir", help="folder of results, such as results or playpen-eval/TIMESTAMP/clem")
    arguments = parser.parse_args()
    launch(lambda: create_conversational_dataset_for(arguments.top_dir))
