"""Fuzzing of every parser that reads what others write: `make fuzz`, and the corpus that `make test` replays."""
