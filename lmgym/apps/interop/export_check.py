"""`export_check.py FOLDER MODULE`: begins an episode of an exported package, and prints what it uses of this machine.

Imports nothing of lmgym before it listens. Prints {"needs": [...]} or {"error": "..."} as JSON on the last line.
"""

import json
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/var/lib")
HERE = {"127.0.0.1", "::1", "localhost", "0.0.0.0"}
opened: list[str] = []
others: list[str] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the files that are read, the programs that are started and the servers on loopback."""
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        reads = not isinstance(arguments[1], str) or not set("wax") & set(arguments[1])
        if reads:
            opened.append(os.fsdecode(arguments[0]))
    elif event == "subprocess.Popen":
        others.append(f"the program {arguments[0]}")
    elif event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] in HERE:
        others.append(f"the server {arguments[1][0]}:{arguments[1][1]}")


def say(found: dict[str, Any]) -> None:
    """Write the last line of the output."""
    os.write(1, f"\n{json.dumps(found)}\n".encode())


def roots(folder: str) -> list[str]:
    """Folders that an installation has, here or elsewhere."""
    import lmgym

    own = [folder, os.getcwd(), str(Path(lmgym.__file__).resolve().parents[1]), *SYSTEM]
    installed = [*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix]
    return [os.path.realpath(path) + os.sep for path in [*own, *installed] if path]


def main() -> None:
    """Listen, begin and print."""
    folder, module = sys.argv[1:3]
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    sys.addaudithook(listen)
    try:
        import importlib

        trl = importlib.import_module(f"{module}.trl")
        opened.clear()  # what imports read: modules, and what libraries look for when they start
        others.clear()
        from lmgym.apps.interop.to_trl import rows

        [row] = rows(trl.Environment, 1)
        environment = trl.Environment()
        environment.reset(**row)
        environment.reply("x")
        environment._session.close()
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    known = tuple(roots(folder))
    files = {path for path in map(os.path.realpath, opened) if os.path.isfile(path) and not path.startswith(known)}
    say({"needs": [*sorted(files), *dict.fromkeys(others)]})


if __name__ == "__main__":
    main()
