"""What the demos are made of: steps that resume, tables of results, and the demo on a real model.

May import anything, as `lmgym/cli`.
"""
