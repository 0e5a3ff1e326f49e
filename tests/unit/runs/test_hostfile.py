"""Hostfiles as people have them, and lines that are none."""

from pathlib import Path

import pytest
from deepspeed.launcher.runner import _parse_hostfile

from lmgym.errors import InputError
from lmgym.runs.hostfile import Host, choose_hosts, read_hostfile

TWO = [Host("worker-1", 4), Host("worker-2", 4)]


@pytest.mark.parametrize(
    "text",
    [
        "worker-1 slots=4\nworker-2 slots=4\n",  # DeepSpeed's page
        "worker-1 slots=4\r\nworker-2 slots=4",  # written on Windows, no last line break
        "\n# nodes of the cluster\nworker-1\tslots=4\n\n\t\n  worker-2    slots=4   # the new one\n#worker-3 slots=4\n",
        "worker-1 slots=4 max_slots=4\nworker-2 slots=4 max-slots=8\n",  # Open MPI's
        "\ufeffworker-1 slots=4\nworker-2 slots=4\n",
    ],
)
def test_hosts_are_read_in_the_order_of_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(text.encode())
    assert read_hostfile(str(tmp_path / "hosts")) == TWO
    if "\ufeff" not in text:
        assert list(_parse_hostfile(text.splitlines(keepends=True)).items()) == TWO  # as DeepSpeed reads it


def test_names_may_be_addresses_and_have_users(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.0.0.7 slots=8\nroot@gpu01.cluster.example slots=8\nip-10-0-0-8 slots=1\n")
    found = read_hostfile(str(tmp_path / "hosts"))
    assert [host.address for host in found] == ["10.0.0.7", "gpu01.cluster.example", "ip-10-0-0-8"]
    assert found[1] == ("root@gpu01.cluster.example", 8)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("worker-3", "'worker-3' has no slots; needed: slots=N after the name, the number of its processes"),
        ("worker-3:8", "'worker-3:8' has no slots; "),
        ("worker-3 slots=", "'worker-3' has 'slots='; needed: slots=N"),
        ("worker-3 gpus=8", "'worker-3' has 'gpus=8'; needed: slots=N"),
        ("worker-3 slots=0", "'worker-3' has slots=0; needed: 1 to 1024"),
        ("worker-3 slots=99999", "'worker-3' has slots=99999; needed: 1 to 1024"),
        ("worker-1 slots=8", "'worker-1' is there twice; needed: one line, with all its slots"),
        ("me@worker-2 slots=8", "'me@worker-2' is there twice; "),
        ("-oProxyCommand=id slots=8", "'-oProxyCommand=id' is no host's name"),
        ("a@-oProxyCommand=id slots=8", "'a@-oProxyCommand=id' is no host's name"),
        ("worker-3;id slots=8", "'worker-3;id' is no host's name"),
        ("worker-[3-9] slots=8", "'worker-[3-9]' is no host's name"),
        ("kn\u00f6ten slots=8", "'kn\u00f6ten' is no host's name"),
    ],
)
def test_each_wrong_line_is_named_with_its_number(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"worker-1 slots=4\nworker-2 slots=4\n{line}\n")
    with pytest.raises(InputError, match="has 1 wrong line; needed: lines such as node-a slots=8") as caught:
        read_hostfile(str(tmp_path / "hosts"))
    assert len(caught.value.details) == 1
    assert caught.value.details[0].startswith(f"line 3: {message}")


@pytest.mark.parametrize(("data", "message"), [(b"# none\n\n", "has no host"), (b"\xff\xfe\x00", "is not text")])
def test_a_file_without_hosts_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_hostfile(str(tmp_path / "hosts"))


def test_the_first_hosts_train_and_the_next_ones_serve() -> None:
    hosts = [Host("a", 4), Host("b", 2), Host("c", 8)]
    assert choose_hosts(hosts, None, 0, None) == hosts
    assert choose_hosts(hosts, 2, 0, None) == hosts[:2]
    assert choose_hosts(hosts, 1, 1, 3) == [Host("a", 3), Host("b", 2)]
    with pytest.raises(InputError, match="--nodes 3 and --vllm_nodes 1 are more than the hostfile's 3 host"):
        choose_hosts(hosts, 3, 1, None)
    with pytest.raises(InputError, match="--num_gpus 3, and b has slots=2; needed: at most those"):
        choose_hosts(hosts, 2, 0, 3)
