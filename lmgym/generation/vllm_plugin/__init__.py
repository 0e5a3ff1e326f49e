"""Code that runs inside a vLLM server, whose PYTHONPATH has this folder.

May import torch alone: a server's environment has no lmgym.
"""
