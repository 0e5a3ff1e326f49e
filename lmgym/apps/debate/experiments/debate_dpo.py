"""Debate by DPO in rounds against the former policy, before a judge that counts a letter.

lmgym train preference debate_dpo --model outputs/demo/policy/model
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from preferences.config import LossConfig
from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig

CONFIG = IterativeConfig(
    name="debate_dpo",
    policy=ModelConfig(model="outputs/demo/policy/model", lora_rank=32, lora_alpha=64, precision="fp32"),
    data=PromptConfig(prompts="outputs/debate_prompts.jsonl", eval_size=64, max_length=256),
    rounds=RoundConfig(prompts_per_round=128, num_generations=4, max_new_tokens=32, renew_reference=True),
    judge=JudgeConfig(weights="p_win=1,won=0", missing_eos_penalty=0.0),
    loss=LossConfig("dpo", beta=0.1),
    optimizer=OptimizerConfig(2e-3, schedule="constant_with_warmup", global_batch=64, micro_batch=64, max_updates=16),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.debate.formats import debate
    from lmgym.apps.debate.players.judges import LetterJudge
    from lmgym.apps.debate.prompts.short import PROMPTS
    from lmgym.apps.debate.synthetic import synthetic_questions
    from lmgym.apps.debate.training.preference_pairs import train_on_debates

    questions = synthetic_questions(512, seed=config.optimizer.split_seed)
    launch(lambda: train_on_debates(config, questions, debate(rounds=1), PROMPTS, LetterJudge("l")))
