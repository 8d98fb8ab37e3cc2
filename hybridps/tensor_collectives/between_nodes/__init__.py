"""What the nodes of a group tell each other: the algorithms, chunk by chunk, and the loop that drives them."""
