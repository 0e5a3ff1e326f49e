"""A program as trlx's users write them, with a sentiment scorer of its own: MODEL and FOLDER are its arguments."""

import sys

from ppo import trlx
from ppo.trlx.data.default_configs import TRLConfig, default_ppo_config

WORTH = {"good": 1.0, "nice": 1.0, "bad": -1.0}


def sentiment(text: str) -> float:
    return sum(WORTH.get(word, 0.01 * len(word)) for word in text.split())


def main(hparams: dict) -> None:
    config = TRLConfig.update(default_ppo_config().to_dict(), hparams)

    def reward_fn(samples: list[str], **kwargs) -> list[float]:
        return [sentiment(sample) for sample in samples]

    def metric_fn(samples: list[str], **kwargs) -> dict[str, list[float]]:
        return {"sentiments": reward_fn(samples)}

    trainer = trlx.train(
        reward_fn=reward_fn,
        prompts=["what a", "this is", "they were", "I am"] * 4,
        eval_prompts=["I don't know"] * 4,
        metric_fn=metric_fn,
        config=config,
    )
    trainer.save_pretrained(f"{sys.argv[2]}/saved")


if __name__ == "__main__":
    main(
        {
            "train.total_steps": 8, "train.batch_size": 4, "train.seq_length": 64, "train.checkpoint_dir": sys.argv[2],
            "train.eval_interval": 4, "train.tracker": None, "model.model_path": sys.argv[1],
            "tokenizer.tokenizer_path": sys.argv[1], "model.num_layers_unfrozen": 1, "method.num_rollouts": 8,
            "method.ppo_epochs": 2, "method.gen_kwargs.max_new_tokens": 6,
        }
    )  # fmt: skip
