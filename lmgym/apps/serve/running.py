"""The reward server's process, from its scorers to its end."""

import signal
import socket
import threading
from collections.abc import Mapping

from lmgym.apps.serve.app import make_app
from lmgym.apps.serve.http_server import serve_until_stopped
from lmgym.apps.serve.served_scorers import ServedScorer
from lmgym.apps.serve.service import Limits, Service
from lmgym.console import say
from lmgym.scoring.combinations import is_combination
from lmgym.scoring.named_scorers import Precision


def serve_rewards(
    listener: socket.socket, paths: Mapping[str, str], token: str, limits: Limits, precision: Precision = "auto"
) -> None:
    """Serves scorers at a bound socket until SIGTERM or Ctrl-C, and then answers what waits."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while they load there is nothing to load again
    service = Service(paths, limits, precision)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=service.reload, daemon=True).start())
    for name, scorer in service.scorers.items():
        say(f"{name}: fingerprint {scorer.info['fingerprint']}, {describe(scorer)}")
    app, answers = make_app(service, token), "answers /get_reward, /classify, /v1/embeddings and /v1/score"
    serve_until_stopped(listener, app, service.metrics, answers, token, limits.max_body_mb, limits.timeout)
    service.stop()
    say("stopped")


def describe(scorer: ServedScorer) -> str:
    """The contents of its answers, in words."""
    saved = [member.reference for member in scorer.members]
    known = {"z-scores": all(saved), "quantiles": all(one and one.quantiles for one in saved)}
    has_spread = len(saved) > 1 or is_combination(scorer.members[0].reduce)
    known |= {"spread": has_spread, "P(a beats b)": all(member.compares for member in scorer.members)}
    return "with " + ", ".join(["scores", *(name for name, has in known.items() if has)])
