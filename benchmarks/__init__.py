"""What things cost, always as a ratio to a floor measured in the same run: machines are noisy."""
