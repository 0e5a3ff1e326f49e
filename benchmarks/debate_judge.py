"""A small judge of made-up questions, and debaters that say random pieces: what benchmarks/debate.py compares.

    lmgym debate audit benchmarks/debate_judge.py
    lmgym debate benchmarks/debate_judge.py

The judge is a Llama of 2 layers from scratch, trained by SFT to name the right debater in rounds about other questions,
half debates and half consultancies. A debater says its answer and one piece: a quote (the proof of the right answer; a
sentence that has the wrong one for something else), an invented quote, the wanted fact as a plain claim, or no content.
Those with the right answer find a quote more often, as PIECES says.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.apps.debate.debate import Debate  # noqa: E402
from lmgym.apps.debate.formats import Format, consultancy, debate  # noqa: E402
from lmgym.apps.debate.players.judges import RandomJudge, ScorerJudge  # noqa: E402
from lmgym.apps.debate.players.name_judge import NameJudge  # noqa: E402
from lmgym.apps.debate.players.protocol import Judge  # noqa: E402
from lmgym.apps.debate.players.scripted import ScriptedPlayer, invent_quote  # noqa: E402
from lmgym.apps.debate.prompts import short  # noqa: E402
from lmgym.apps.debate.prompts.wordings import read_prompts  # noqa: E402
from lmgym.apps.debate.questions import Question  # noqa: E402
from lmgym.apps.debate.quotes import CLOSE, OPEN  # noqa: E402
from lmgym.apps.debate.rendering import judge_conversation, needed_tags  # noqa: E402
from lmgym.apps.debate.synthetic import synthetic_questions  # noqa: E402
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig  # noqa: E402
from lmgym.apps.debate.tournament.playing import play_rounds  # noqa: E402
from lmgym.apps.debate.tournament.running import run_tournament  # noqa: E402
from lmgym.apps.debate.tournament.schedule import make_schedule  # noqa: E402
from lmgym.apps.debate.transcript import Transcript  # noqa: E402
from lmgym.apps.games.small_policy import imitate  # noqa: E402
from lmgym.environments.players import Player  # noqa: E402
from lmgym.environments.random_walks_model import made_once  # noqa: E402
from lmgym.runs.flags import override  # noqa: E402
from lmgym.runs.launch import launch  # noqa: E402

FACTS, DIFFICULTY, TRAINING_SEEDS, TEST_SEED = 8, 0.5, (1, 2), 3
ROWS, STEPS = 4000, 300
PIECES = {True: (0.5, 0.1, 0.2, 0.2), False: (0.2, 0.4, 0.2, 0.2)}
"""probabilities of a quote, an invented one, a claim and filler, of the right answer and of the wrong one"""
FILLER = "I am sure of it, and this is plain to see."
PROMPTS = short.PROMPTS | {
    "judge": "Judge it.",
    "before_debate_judge": "<TOPIC> <FIRST_NAME>: <FIRST_POSITION>, <SECOND_NAME>: <SECOND_POSITION>",
    "speech_heard": "<SPEAKER>:",
    "verdict": "Who is right?",
}
"""in few words: what is trained and judged is short"""
CONFIG = TournamentConfig(name="benchmark")


def argue(round: Debate, agent: str, rng: np.random.Generator) -> str:
    """The answer, and one random piece."""
    transcript = round.transcript
    position, fact = transcript.positions[agent], wanted_fact(transcript, agent)
    honest = agent == transcript.correct
    sentences = [f"{sentence.strip('. ')}." for sentence in transcript.question.text.split(". ")]
    own = fact if honest else str(rng.choice([s for s in sentences if s.endswith(f" {position}.")]))
    answer = f"The answer is {position}."
    pieces = [f"{answer} {OPEN}{own}{CLOSE}", invent_quote(round, agent, rng), f"{answer} {fact}", f"{answer} {FILLER}"]
    return pieces[rng.choice(len(pieces), p=PIECES[honest])]


def wanted_fact(round: Transcript, agent: str) -> str:
    """The sentence that would prove the agent's answer; the page has it for the right one."""
    words = round.question.question.removeprefix("Where does ").rstrip("?").replace(" keep ", " keeps ")
    return f"{words} {round.positions[agent]}."


def play(
    format: Format,
    questions: Sequence[Question],
    judge: Judge,
    players: Mapping[str, Player],
    pairs: Sequence[str] = (),
) -> list[Transcript]:
    """All rounds of the pairs, or of each player alone, about the questions, with both answers on either side."""
    tournament = Tournament(questions, players, judge, format, PROMPTS)
    config = TournamentConfig("play", custom=tuple(pairs), pairs="custom" if pairs else "round_robin")
    return play_rounds(tournament, make_schedule(config, list(players), len(questions), format), 0, False)


def train_judge(rows: int, steps: int, seed: int):
    """(model, tokenizer): SFT on the name of the right debater, of `rows` rounds with random pieces."""
    moves = []
    for number, format in enumerate((debate(1), consultancy(1))):
        read = read_prompts(PROMPTS, needed_tags(format))
        questions = synthetic_questions(rows // 4, FACTS, DIFFICULTY, TRAINING_SEEDS[number])
        for place, played in enumerate(play(format, questions, RandomJudge(), {"1": ScriptedPlayer(argue)})):
            round = played.mirrored() if place // 2 % 2 else played  # consultants have either name
            moves.append((judge_conversation(read, round), str(round.correct)))
    return imitate(moves, seed, steps)


def load_judge(folder: str | Path, rows: int = ROWS, steps: int = STEPS, seed: int = 0) -> ScorerJudge:
    """The judge of a folder, in both orders; made there on first use."""
    name = made_once(Path(folder), lambda: train_judge(rows, steps, seed))
    return ScorerJudge(NameJudge.load(str(name)), PROMPTS, both_orders=True)


def judge_folder(seed: int) -> Path:
    """Where the judge of that seed is kept."""
    return ROOT / f"outputs/debate_judge_{seed}"


def held_out(number: int) -> list[Question]:
    """Questions that the judge was not trained on."""
    return synthetic_questions(number, FACTS, DIFFICULTY, TEST_SEED)


def setup(config: TournamentConfig) -> Tournament:
    """The judge and a debater without best-of-N."""
    judge = load_judge(config.judge_model or judge_folder(config.seed), seed=config.seed)
    return Tournament(held_out(config.questions or 40), {"1": ScriptedPlayer(argue)}, judge, debate(1), PROMPTS)


if __name__ == "__main__":
    launch(lambda: run_tournament(override(CONFIG), setup))
