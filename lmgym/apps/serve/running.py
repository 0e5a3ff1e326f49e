"""The server's process, from its scorers to its end."""

import signal
import socket
import threading
from collections.abc import Mapping

import uvicorn

from lmgym.apps.serve.address import url_of
from lmgym.apps.serve.app import make_app
from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.served_scorers import ServedScorer
from lmgym.apps.serve.service import Limits, Service
from lmgym.console import say
from lmgym.scoring.named_scorers import Precision

BACKLOG = 2048


def serve_rewards(
    listener: socket.socket, paths: Mapping[str, str], token: str, limits: Limits, precision: Precision = "auto"
) -> None:
    """Serves scorers at a bound socket until SIGTERM or Ctrl-C, and then answers what waits."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while they load there is nothing to load again
    service = Service(paths, limits, precision)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=service.reload, daemon=True).start())
    app = make_app(service, token)
    routes = {getattr(route, "path", "") for route in app.routes}
    config = uvicorn.Config(
        Guard(app, service.metrics, routes, token, int(limits.max_body_mb * 2**20)),
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
    )
    for name, scorer in service.scorers.items():
        say(f"{name}: fingerprint {scorer.info['fingerprint']}, {describe(scorer)}")
    server = uvicorn.Server(config)
    # uvicorn handles both while it serves, and raises them again at its end, which would end the process at once
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    listener.listen(BACKLOG)
    say(f"{url_of(listener)} answers /get_reward, /classify, /v1/embeddings and /v1/score; Ctrl-C stops")
    server.run([listener])
    service.batcher.stop()
    say("stopped")


def describe(scorer: ServedScorer) -> str:
    """The contents of its answers, in words."""
    saved = [member.reference for member in scorer.members]
    known = {"z-scores": all(saved), "quantiles": all(one and one.quantiles for one in saved)}
    known |= {"spread": len(saved) > 1, "P(a beats b)": all(member.compares for member in scorer.members)}
    return "with " + ", ".join(["scores", *(name for name, has in known.items() if has)])
