"""What Playpen's commands do: list, run and evaluate (lmgym/cli/playpen_commands.py).

May import everything in lmgym but no stage.
"""
