"""Parts of a checkpoint that several workers wrote, and the whole that they make; without torch."""
