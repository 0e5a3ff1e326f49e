"""Task setups of debates: one policy plays both debaters, and is compared with the policy that it started from.

Design decisions:
- Each debater is an agent with an episode of its own, and its reward is the judge's P(win) less its side's baseline.
- Evaluations are rounds against the starting policy, half of them on either side: against itself a policy wins half.
"""

from collections.abc import Sequence
from typing import Any

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, Format
from lmgym.apps.debate.players.judges import JudgeReward
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.questions import Question
from lmgym.environments.one_side import OPPONENT, SIDE, OneSide
from lmgym.errors import InputError
from lmgym.generation.local_generation import load_causal
from ppo.config import PPOConfig
from ppo.rewards import SCORER_SETTINGS
from ppo.task_setups import Prepare, TaskSetup, refuse_unused


def debate_rounds(
    questions: Sequence[Question],
    format: Format,
    prompts: PromptSet,
    judge: Judge,
    baselines: tuple[float, float] = (0.5, 0.5),
) -> Prepare:
    """Self-play about the questions, of which the last --eval_size are evaluated on, from both sides.

    `baselines` are those of Debate. Raises InputError for scorers, opponents, formats without two debaters, and too few
    questions.
    """

    def prepare(config: PPOConfig, tokenizer: Any) -> TaskSetup:
        refuse_unused(config.reward, SCORER_SETTINGS, "a debate's judge gives the rewards")
        held_out = int(config.rollout.eval_size)
        if not 1 <= held_out < len(questions):
            raise InputError(
                f"eval_size={config.rollout.eval_size:g} of {len(questions)} questions; needed: at least 1, and 1 left"
            )
        if format.debaters != DEBATERS:
            raise InputError(f"a {format.name} has the debaters {list(format.debaters)}; needed: two, for self-play")
        limited = format.with_tokens(speech=config.rollout.max_new_tokens)

        def make(varied: bool = True) -> Debate:
            return Debate(limited, prompts, varied, "scorer", baselines)

        make()  # prompts that lack a tag are refused before weights are loaded
        reference = load_causal(config.method.reference or config.policy.model)
        tasks = [question.task for question in questions]
        evaluations = [
            {**task, SIDE: side, "flipped": i % 2 == 1} for i, task in enumerate(tasks[-held_out:]) for side in DEBATERS
        ]
        return TaskSetup(
            tasks[:-held_out],
            evaluations,
            make,
            JudgeReward(judge),
            f"debates about {len(tasks)} questions",
            trained_agents=2,
            eval_environment=lambda: OneSide(make(varied=False), DEBATERS),
            eval_players={OPPONENT: reference},
        )

    return prepare
