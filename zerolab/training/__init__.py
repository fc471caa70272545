"""What a lab trains: a small GPT on real text."""
