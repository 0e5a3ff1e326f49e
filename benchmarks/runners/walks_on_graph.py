"""The experiment of random walks on the graph whose seed is in the environment variable GRAPH."""

import os

from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.experiments.randomwalks import CONFIG

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.task_setups import random_walks
    from ppo.train import train

    launch(lambda: train(config, lambda config, tokenizer: random_walks(config, tokenizer, int(os.environ["GRAPH"]))))
