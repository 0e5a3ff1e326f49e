"""Read by Python at its start where this folder is on PYTHONPATH: with PRETENDED_GPU=1 the process has a GPU."""

import os

if os.environ.get("PRETENDED_GPU") == "1":
    import pretended_cuda

    pretended_cuda.install()
