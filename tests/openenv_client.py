"""The package's own client, as a program: `python openenv_client.py URL`.

Reads a list of episodes, each {"reset": arguments, "replies": texts}, and prints what each message gave.
"""

import json
import sys

from openenv import GenericEnvClient


def sent(result) -> dict:
    return {"observation": result.observation, "reward": result.reward, "done": result.done}


with GenericEnvClient(base_url=sys.argv[1]).sync() as client:
    episodes = []
    for episode in json.load(sys.stdin):
        steps = [sent(client.reset(**episode["reset"]))]
        steps += [sent(client.step({"text": reply})) for reply in episode["replies"]]
        episodes.append(steps)
json.dump(episodes, sys.stdout)
