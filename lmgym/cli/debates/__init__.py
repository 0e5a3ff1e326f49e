"""What `lmgym debate` starts: experiments, and the export of rows.

May import lmgym.environments.debate and what is below it.
"""
