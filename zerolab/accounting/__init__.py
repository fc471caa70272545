"""What training states, traffic and links cost on paper: pure Python, no torch."""
