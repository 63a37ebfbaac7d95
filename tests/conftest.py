"""How hypothesis runs: the same examples every time under ``ci``, new ones under ``dev``."""

from hypothesis import settings

# No deadlines: on a busy machine an example takes as long as it takes.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("dev")
