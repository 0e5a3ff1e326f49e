"""The reward server under schemathesis, which makes requests of its OpenAPI description: no status of 5xx but 503.

schemathesis is a program in an environment of its own: `python -m venv build/schemathesis`, and pip in that.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from reward_servers import RewardServer

OWN = Path(__file__).parents[4] / "build/schemathesis/bin/schemathesis"
PROGRAM = str(OWN) if OWN.exists() else shutil.which("schemathesis")
ALLOWED = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "4xx", 503]\n'


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM, reason="no schemathesis: python -m venv build/schemathesis, and pip install it there")
def test_no_request_of_the_servers_own_description_fails(server: RewardServer, tmp_path: Path) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(ALLOWED)
    command = [str(PROGRAM), "--config-file", str(settings), "run", f"{server.url}/openapi.json", "--no-color"]
    options = ["-c", "not_a_server_error", "--max-examples", "40", "--seed", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=5 * PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "Fuzzing" in done.stdout
    metrics = server.ask("/metrics")[1]
    for path in ("/get_reward", "/classify", "/v1/classify", "/v1/embeddings", "/v1/score"):
        assert f'path="{path}",status="200"' in metrics
