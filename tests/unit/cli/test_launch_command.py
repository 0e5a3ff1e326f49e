"""`lmgym launch` for several nodes: what it prints and refuses; tests/hosts/ starts it."""

import base64
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.cli.main import main

ROOT = Path(__file__).parents[3]
KEY = "hf_notarealtoken12345"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with data, a hostfile and an environment of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SLURM_JOB_ID", "DS_ENV_FILE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "pairs.jsonl").touch()
    (tmp_path / "hosts").write_text("node-a slots=2\nuser@node-b slots=2\nnode-c slots=4\n")
    return tmp_path


def launched(words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["launch", *shlex.split(words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def commands(printed: str) -> dict[str, list[str]]:
    """The words of each host's command, as a shell reads what was printed."""
    found = {}
    for part in printed.split("# on ")[1:]:
        host, _, text = part.partition("\n")
        lines = text.partition("\n\n")[0].replace("\\\n", " ").splitlines()
        found[host] = shlex.split(lines[-1])
    return found


# --- a hostfile


def test_torchrun_on_each_host_meets_at_the_first_one(folder: Path) -> None:
    code, said, _ = launched("--hostfile hosts train reward pairs.jsonl --model m --learning_rate 1e-5")
    assert code == 0
    found = commands(said)
    assert list(found) == ["node-a", "user@node-b", "node-c"]
    for place, (slots, words) in enumerate(zip((2, 2, 4), found.values(), strict=True)):
        assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
        flags = dict(zip(words[3:-9:2], words[4:-9:2], strict=True))
        assert flags.pop("--master_port").startswith("2")
        assert flags == {
            "--nnodes": "3", "--nproc_per_node": str(slots), "--node_rank": str(place), "--master_addr": "node-a",
        }  # fmt: skip
        script = [str(ROOT / "reward_models/experiments/hh_pairwise.py"), "--name", "pairs"]
        assert words[-9:] == [*script, "--dataset", "pairs.jsonl", "--model", "m", "--learning_rate", "1e-5"]
    assert "--submit" in said


def test_deepspeeds_launcher_knows_all_hosts_and_its_own_place(folder: Path) -> None:
    code, said, _ = launched("hh_pairwise --dataset pairs.jsonl --deepspeed zero2 --hostfile hosts --nodes 2")
    assert code == 0
    for place, (host, words) in enumerate(commands(said).items()):
        assert words[:4] == [sys.executable, "-u", "-m", "deepspeed.launcher.launch"]
        world = json.loads(base64.urlsafe_b64decode(words[4].removeprefix("--world_info=")))
        assert world == {"node-a": [0, 1], "user@node-b": [0, 1]}
        assert words[5:9] == ["--node_rank", str(place), "--master_addr", "node-a"]
        assert host in world
        assert words[-2:] == ["--deepspeed", "zero2"]


def test_the_port_is_that_of_the_command_or_the_one_that_is_given(folder: Path) -> None:
    ports = [
        re.findall(r"--master_port (\d+)", launched(f"--hostfile hosts {words}")[1])
        for words in ("hh_pairwise --seed 1", "hh_pairwise --seed 1", "hh_pairwise --seed 2")
    ]
    assert ports[0] == ports[1] != ports[2]
    assert len(set(ports[0])) == 1
    assert 20000 <= int(ports[0][0]) < 30000
    assert "--master_port 4321 " in launched("--hostfile hosts --master_port 4321 hh_pairwise")[1]


def test_variables_are_exported_and_secrets_only_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HF_TOKEN": KEY, "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3", "EDITOR": "vi", "WANDB_PROJECT": "a b",
        "https_proxy": f"http://me:{KEY}@proxy:80",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (folder / "home/.deepspeed_env").write_text(
        "# ours\nGLOO_SOCKET_IFNAME=eth0\n\nMY_VARIABLE='x'\nMY_API_KEY=abc12345\n"
    )
    for words in ("--hostfile hosts hh_pairwise", "--slurm --nodes 2 hh_pairwise"):
        code, said, told = launched(words)
        assert code == 0
        for line in ("NCCL_DEBUG=INFO", "GLOO_SOCKET_IFNAME=eth0", "MY_VARIABLE=x", "WANDB_PROJECT='a b'"):
            assert f"\nexport {line}\n" in said
        assert "HF_TOKEN, MY_API_KEY, https_proxy" in said
        assert not any(word in said + told for word in (KEY, "***", "abc12345", "CUDA_VISIBLE", "EDITOR"))


def test_servers_of_vllm_are_the_last_hosts_and_the_run_is_told_their_addresses(folder: Path) -> None:
    code, said, _ = launched(
        "--hostfile hosts --vllm_nodes 1 --vllm_flags '--tensor-parallel-size 4' --master_port 21000 "
        "train grpo friendly_answers --model /m --lora_rank 16"
    )
    assert code == 0
    found = commands(said)
    serve = [sys.executable, "-m", "lmgym.cli.main", "engine", "serve", "/m", "--max_lora_rank", "16"]
    assert found["node-c"] == [*serve, "--tensor-parallel-size", "4", "--host", "0.0.0.0", "--port", "21001"]
    for name in ("node-a", "user@node-b"):
        assert found[name][-2:] == ["--engine", "vllm:http://node-c:21001"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "Missing argument"),
        ("--nodes 2 hh_pairwise", "--nodes is for several nodes; needed with it: --hostfile FILE, or --slurm"),
        ("--submit hh_pairwise", "--submit is for several nodes; "),
        ("--hostfile hosts --time 5 hh_pairwise", "--time is for Slurm; needed: --slurm in place of --hostfile"),
        ("--hostfile hosts --slurm hh_pairwise", "--hostfile and --slurm: both choose the nodes; needed: one"),
        ("--hostfile none hh_pairwise", "--hostfile none does not exist; needed: a file with lines such as node-a"),
        ("--hostfile home hh_pairwise", "--hostfile home is a folder; needed: a file"),
        ("--hostfile hosts --nodes 4 hh_pairwise", "--nodes 4 are more than the hostfile's 3 host(s)"),
        ("--hostfile hosts --vllm_nodes 3 --nodes 1 ppo.py --model m", "there is no experiment file ppo.py"),
        ("--hostfile hosts --vllm_nodes 3 maths --model m", "one that trains and --vllm_nodes 3 are more than"),
        ("--hostfile hosts --vllm_nodes 1 maths", "--vllm_nodes without --model; needed: --model PATH"),
        ("--hostfile hosts --vllm_nodes 1 maths --engine vllm:x", "--vllm_nodes and --engine; needed"),
        ("--hostfile hosts --num_gpus 4 hh_pairwise", "--num_gpus 4, and node-a has slots=2; needed: at most those"),
        (
            "--hostfile hosts hh_pairwise --deepspeed none.json",
            "DeepSpeed config none.json does not exist; needed: zero1",
        ),
        ("--hostfile hosts train", "found nothing after train; needed: one of reward, sft, "),
        ("--hostfile hosts train rm pairs.jsonl", "found 'rm' after train; needed: one of reward, sft, "),
        ("--slurm --job_name 'a b' hh_pairwise", "--job_name 'a b'; needed: letters, digits"),
        ("--slurm --nodes 0 hh_pairwise", "Invalid value for '--nodes': 0 is not in the range 1<=x<=4096"),
        ("--slurm --num_gpus -1 hh_pairwise", "num_gpus=-1; needed: 1 to 1,024"),
        ("--hostfile hosts --num_gpus 0 hh_pairwise", "num_gpus=0; needed: 1 to 1,024"),
        ("--slurm --sbatch 'a b=c' hh_pairwise", "--sbatch 'a b=c' is no setting; needed: NAME=VALUE"),
        ("--slurm --nodes 2 --time 1:00 --dry_run hh_pairwise", "--dry_run asks the nodes of an allocation, and"),
    ],
)
def test_what_cannot_be_launched_is_one_line(words: str, message: str, folder: Path) -> None:
    code, said, told = launched(words)
    assert code == 2
    assert told.splitlines()[-1].startswith(f"error: {message}")
    assert said == ""


# --- Slurm


def job(words: str) -> str:
    code, said, _ = launched(f"--slurm {words}")
    assert code == 0
    done = subprocess.run(["bash", "-n"], input=said, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return said


def settings(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(line.partition("=")[::2] for line in lines)


def test_a_batch_file_asks_for_what_was_asked_for_and_comes_back(folder: Path) -> None:
    text = job(
        "--nodes 2 --gpus_per_node 8 --cpus-per-task 64 --time 12:00:00 --partition main --sbatch account=abc "
        "--sbatch=--exclusive train reward pairs.jsonl --model m"
    )
    assert settings(text) == {
        "job-name": "hh_pairwise", "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "8", "cpus-per-task": "64",
        "time": "12:00:00", "partition": "main", "account": "abc", "exclusive": "", "requeue": "",
        "open-mode": "append", "signal": "B:USR1@120", "output": f"{folder}/outputs/slurm/hh_pairwise.%j.log",
    }  # fmt: skip
    assert "--nproc_per_node 8 " in text
    plain = settings(job("hh_pairwise --grace 600 --job_name mine"))
    assert not {"gpus-per-node", "time", "partition", "cpus-per-task"} & set(plain)
    assert (plain["nodes"], plain["signal"], plain["job-name"]) == ("1", "B:USR1@600", "mine")


STAND_INS = {
    "srun": 'printf "%s\\n" "$@" > srun.words; trap "echo saved >> log; [ -e last ] && exit 0; exit 75" USR1; '
    "echo $$ > pid; mv pid srun.pid; for _ in $(seq 600); do [ -e finish ] && exit 0; sleep .05; done",
    "scancel": 'printf "%s\\n" "$@" > scancel.words; kill -USR1 "$(cat srun.pid)"',
    "scontrol": 'if [ "$1" = show ]; then printf "node-a\\nnode-b\\nnode-c\\n"; else echo "$@" >> log; kill $PPID; fi',
}
"""programs in place of Slurm's: srun, which ends 75 on USR1 or 0 once there is a file"""


@pytest.fixture
def running(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A batch file that runs, with programs in place of Slurm's."""
    (folder / "bin").mkdir()
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin", prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "12345")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node-[a-c]")
    started = []

    def start(text: str) -> subprocess.Popen:
        (folder / "job.sbatch").write_text(text)
        started.append(subprocess.Popen(["bash", "job.sbatch"], cwd=folder, start_new_session=True))
        while not (folder / "srun.pid").exists():
            assert started[-1].poll() is None
        return started[-1]

    yield start
    (folder / "finish").touch()
    for process in started:
        process.kill()
        process.wait()


def test_usr1_saves_first_and_requeues_then(running, folder: Path) -> None:
    text = job("--nodes 3 hh_pairwise --note 'a \"b\" $c'")
    process = running(text)
    words = (folder / "srun.words").read_text().splitlines()
    assert words[:3] == ["--nodes=3", "--ntasks=3", "--kill-on-bad-exit=1"]
    assert words[-2:] == ["--note", 'a "b" $c']
    process.send_signal(10)  # USR1
    process.wait(60)
    assert (folder / "scancel.words").read_text().splitlines() == ["--signal=USR1", "12345"]
    assert (folder / "log").read_text().splitlines() == ["saved", "requeue 12345"]


def test_a_run_that_has_ended_is_not_requeued(running, folder: Path) -> None:
    process = running(job("hh_pairwise"))
    (folder / "last").touch()  # the signal came during the last update
    process.send_signal(10)
    assert process.wait(60) == 0
    assert (folder / "log").read_text().splitlines() == ["saved"]


def test_servers_of_a_job_are_its_last_nodes(folder: Path) -> None:
    text = job("--nodes 2 --vllm_nodes 1 --vllm_flags '--max_length 4096' maths --model '/m x' --lora_rank 8")
    assert settings(text)["nodes"] == "3"
    for part in ("engine serve '/m x'", "--max_length 4096", "--max_lora_rank 8", "--nnodes 2 ", '"vllm:$urls"'):
        assert part in text


# --- as before


@pytest.mark.parametrize(
    "words", ["hh_pairwise --dry_run --seed 1 --num-gpus 2", "train reward hh_pairwise --dry_run --seed 1 --num_gpus 2"]
)
def test_without_nodes_an_experiment_runs_here_with_its_own_flags(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple] = []
    monkeypatch.setattr("lmgym.cli.launch.launch_experiment", lambda *given: ran.append(given))
    assert launched(words)[0] == 0
    file = ROOT / "reward_models/experiments/hh_pairwise.py"
    assert ran == [(file, ["--dry_run", "--seed", "1"], 2)]
