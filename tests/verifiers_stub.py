"""A stand-in for lmgym/apps/interop/verifiers_worker.py, without verifiers: `verifiers_stub.py NAME SETTINGS`.

Two-turn episodes: "Say N." and then "Again."; each right reply is worth a half. NAME decides what goes wrong.
"""

import json
import sys
import time
from pathlib import Path

NAME, SETTINGS = sys.argv[1], json.loads(sys.argv[2])
playing: dict[int, dict] = {}


def send(**message) -> None:
    print(json.dumps(message), flush=True)


def ask(number: int, text: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}] if NAME == "images" else text
    messages = playing[number]["messages"]
    messages.append({"role": "user", "content": content})
    tools = [{"type": "function"}] if NAME == "tools_later" else []
    send(episode=number, agent="agent", messages=messages, tools=tools)


def differs() -> int:
    return int(NAME == "differs" and Path(SETTINGS["mark"]).exists())


def first_time() -> bool:
    """True once, of all processes of one test."""
    try:
        Path(SETTINGS["mark"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def end(number: int) -> None:
    right = playing[number]["right"]
    reward = {"nan": float("nan"), "text": "much"}.get(NAME, right / 2)
    error = "EnvError: the board fell" if NAME == "raises" else ""
    metrics = {"agent/right": right, "agent/said": "words", "agent/odd": float("inf")}
    send(episode=number, over={"rewards": {"agent": reward}, "metrics": metrics, "error": error})


def main() -> None:
    if NAME == "absent":
        send(error="ModuleNotFoundError: taskset 'absent' not found")
        return
    if NAME == "silent":
        time.sleep(60)
    send(ready={"version": "0.4.0", "tasks": SETTINGS.get("number", 9), "agents": ["agent"], "tools": NAME == "tools"})
    for line in sys.stdin:
        order = json.loads(line)
        number = order["episode"]
        if order["do"] == "start":
            if NAME == "dies_at_first" and first_time():
                sys.exit(3)
            playing[number] = {
                "messages": [{"role": "system", "content": "Numbers."}],
                "number": order["task"],
                "right": 0,
            }
            end(number) if NAME == "ends_at_once" else ask(number, f"Say {order['task'] + differs()}.")
        elif order["do"] == "reply":
            if NAME == "hangs":
                continue
            if NAME == "dies" or (NAME in ("dies_once", "differs") and first_time()):
                sys.exit(3)
            episode = playing[number]
            episode["messages"].append({"role": "assistant", "content": order["text"]})
            episode["right"] += order["text"] == str(episode["number"])
            ask(number, "Again.") if len(episode["messages"]) < 4 else end(number)


if __name__ == "__main__":
    main()
