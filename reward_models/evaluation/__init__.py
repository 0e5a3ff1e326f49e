"""Evaluation of scorers in chats with people."""
