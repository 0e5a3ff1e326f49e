"""A folder by the spec vllm:FOLDER replies as it does in this process, and its server ends with the command."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmgym.generation import model_specs
from lmgym.generation.model_specs import load_generator
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn

ASKED = [Conversation((Turn("user", text),)) for text in ("How do I save money?", "Hello there", "你好 🎈")]


@pytest.mark.slow
def test_a_folder_on_vllm_replies_as_in_this_process(
    vllm: None, servable_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_specs, "LOGS", tmp_path)
    folder = str(servable_models["llama"])
    served, own = load_generator(f"vllm:{folder}"), load_generator(folder)
    greedy = Sampling(16, temperature=0)
    assert [[r.ids for r in some] for some in served.reply(ASKED, 1, greedy)] == [
        [r.ids for r in some] for some in own.reply(ASKED, 1, greedy)
    ]
    sampled = Sampling(16, temperature=1.0, seed=5)
    together = served.reply(ASKED, 3, sampled)
    assert all(len({reply.ids for reply in some}) == 3 for some in together)
    assert [reply.tokens for some in together for reply in some] == [len(r.ids) for some in together for r in some]
    assert served.reply(ASKED[:1], 3, sampled) == together[:1]
    model_specs._own_server(folder).stop()


@pytest.mark.slow
def test_the_server_of_a_command_ends_with_it(vllm: None, servable_models: dict[str, Path], tmp_path: Path) -> None:
    folder = servable_models["qwen3"]
    words = ["-m", "lmgym", "chat", f"vllm:{folder}", "--best_of", "2"]
    done = subprocess.run(
        [sys.executable, *words], input="hello\n", capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "> chosen" in done.stdout
    assert "1 request, " in done.stderr
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"--served-model-name" in command and str(folder).encode() in command for command in commands)
