"""Says in JSON what a node has: a program for its own Python, without imports beyond the standard library.

It is sent over standard input, since the node's lmgym may be another one, or missing: `python - ARGUMENTS < this file`.
ARGUMENTS is a JSON object: root, folder, python, packages, paths (of labels), head, slots, port (0: not on this node).
"""

import base64
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys

MARK, LINE = "lmgym-node-report", 400
WHOLE_BYTES, PIECE_BYTES = 4 << 20, 1 << 20
MOST_FILES = 5000
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
"""git that neither locks the index, which is the user's, nor runs the program that a repository's fsmonitor names"""


def report(given):
    """The values by their names, and sentences about what no node may have."""
    values = {
        "folder": given["folder"] if os.path.isdir(given["folder"]) else "missing",
        "lmgym": given["root"] if os.path.isdir(os.path.join(given["root"], "lmgym")) else "missing",
        **commit(given["root"]),
        "python": "missing",
        "packages": "missing",
    }
    if os.path.exists(given["python"]):  # otherwise this is another one, whose packages say nothing
        values.update({"python": f"{platform.python_version()} {given['python']}", "packages": sys.prefix})
        values.update({"packages/" + name: version(name) for name in given["packages"]})
    for label, path in given["paths"].items():
        values.update(content(label, path))
    return {"host": socket.gethostname(), "values": values, "problems": problems(given)}


def commit(root):
    """The commit of the repository, and a digest of what was changed since; of an installed lmgym its version."""
    head = git(root, "rev-parse", "HEAD")
    if head is None:
        return {"commit": "no repository"}
    names = (git(root, "diff", "--name-only", "HEAD") or b"").decode(errors="replace").split("\n")[:-1]
    changed = hashlib.sha256(git(root, "diff", "HEAD") or b"").hexdigest()[:8]
    return {
        "commit": head.decode()[:12],
        "uncommitted": f"{len(names)} file(s), {changed}" if names else "none",
    }


def git(root, *words):
    """The output of git; None if it fails."""
    command = [*GIT, "-c", "safe.directory=*", "-C", root, *words]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def version(package):
    """The version of an installed package."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def content(label, path):
    """Digests of a file, or of the files of a folder, by label; of a hub id the commit in the hub's cache."""
    path = os.path.expanduser(path)
    if os.path.isfile(path):
        return {label: digest(path)}
    if not os.path.isdir(path):
        return {label: hub_commit(path) or "missing"}
    values = {label: path}
    for place, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            file = os.path.join(place, name)
            if len(values) <= MOST_FILES and not name.startswith("."):
                values[f"{label}/{os.path.relpath(file, path)}"] = digest(file)
    return values


def digest(path):
    """The size and a digest: of all bytes, or of three pieces of a file above 4 MiB."""
    try:
        size = os.path.getsize(path)
        found = hashlib.sha256()
        with open(path, "rb") as file:
            if size <= WHOLE_BYTES:
                found.update(file.read())
            else:
                for place in (0, size // 2, size - PIECE_BYTES):
                    file.seek(place)
                    found.update(file.read(PIECE_BYTES))
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"{size} bytes, {found.hexdigest()[:8]}"


def hub_commit(name):
    """The commit of OWNER/NAME in the hub's cache; None for a path."""
    owner, _, rest = name.partition("/")
    if not owner or not rest or "/" in rest or owner in (".", "..", "~"):
        return None
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    for kind in ("models", "datasets"):
        try:
            with open(os.path.join(cache, f"{kind}--{owner}--{rest}", "refs", "main")) as file:
                return f"hub cache {file.read().strip()[:12]}"
        except OSError:
            continue
    return "not in the hub's cache"


def problems(given):
    """Sentences about this node alone: its own name, the head's address, a port in use, fewer GPUs than processes."""
    found, name, head = [], socket.gethostname(), given["head"]
    own = address(name)
    if head and not os.environ.get("GLOO_SOCKET_IFNAME") and (own is None or own.startswith("127.")):
        found.append(
            f"its own name {name} {f'is {own}' if own else 'has no address'}, so that others cannot reach it; needed: "
            "its address in /etc/hosts, or GLOO_SOCKET_IFNAME=eth0 (the name of its network interface)"
        )
    if head and (there := address(head)) is None:
        found.append(f"cannot find the address of {head}, the first host; needed: a line in /etc/hosts, or DNS")
    elif head and not given["port"] and there.startswith("127."):
        found.append(f"takes {head}, the first host, for {there}, itself; needed: its address in /etc/hosts")
    if given["port"] and in_use(given["port"]):
        found.append(f"port {given['port']} is in use; needed: another --master_port")
    try:
        gpus = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        gpus = 0
    if gpus and gpus < given["slots"]:
        found.append(f"has {gpus} GPU(s) for {given['slots']} processes")
    return found


def address(name):
    """The IPv4 address of a name; None if it has none."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def in_use(port):
    """True if a process listens on the port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    sys.path[:] = filter(None, sys.path)  # the working folder, where the run's Python does not look for packages
    text = base64.b64encode(json.dumps(report(json.loads(sys.argv[1]))).encode()).decode()
    for place in range(0, len(text), LINE):  # srun mixes those of several nodes, but only whole lines of this length
        print(MARK, socket.gethostname(), text[place : place + LINE])
