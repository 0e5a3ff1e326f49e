"""A scorer behind a reward server, named by its address."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.scoring.named_scorers import load_scorer, read_names
from lmgym.text import Conversation, Turn

ASKED = Conversation((Turn("user", "hello"),))


def test_a_scorer_of_an_address_scores_as_its_folder_does(server, calibrated, scorer_folders) -> None:
    replies = ["hi there", "no"]
    for path, name in ((calibrated, "#a"), (scorer_folders["gpt2"], "#b"), (calibrated, "")):
        here = load_scorer(str(path)).score([ASKED] * 2, replies).tolist()
        assert load_scorer(server.url + name).score([ASKED] * 2, replies).tolist() == pytest.approx(here, abs=1e-5)
    assert list(read_names(f"{server.url}#a,x={server.url}")) == ["a", "x"]


def test_lmgym_score_takes_an_address(server, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    command = ["score", f"{server.url}#a", f"{tmp_path}/rows.jsonl", "--output", f"{tmp_path}/out.jsonl"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert set(json.loads((tmp_path / "out.jsonl").read_text())) >= {"score_chosen", "score_rejected"}


def test_an_address_without_a_server_and_a_name_that_it_does_not_have_are_refused(server) -> None:
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        load_scorer("http://127.0.0.1:1#a")
    with pytest.raises(InputError, match=r"#zzz' gives no scores: .*zzz"):
        load_scorer(f"{server.url}#zzz")
    with pytest.raises(InputError, match="the address of a scorer is no plain one"):
        load_scorer("http://user:secret@127.0.0.1:1#a")
