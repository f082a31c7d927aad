"""What is kept: generations of groups at a place, and what is written to them."""
