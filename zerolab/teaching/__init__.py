"""What a reader touches: tables, figures, checks."""
