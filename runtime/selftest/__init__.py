"""``python -m runtime --selftest``: what is installed, and what transfers between the processes cost."""
