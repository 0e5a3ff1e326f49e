"""Data and task setups to train debaters on: speeches for SFT, pairs with preferences, and trees of rounds."""
