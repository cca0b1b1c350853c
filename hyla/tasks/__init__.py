"""The reasoning tasks, by address: split, seed and number of an instance determine it."""
