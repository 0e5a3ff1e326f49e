"""Plans that come along: `lmgym lab list` shows them, `lmgym lab run NAME` runs them."""
