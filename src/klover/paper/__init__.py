"""The experiments of the paper: its data, models and tables."""
