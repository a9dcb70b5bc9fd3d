"""Generations: from which state, with which workers, how they form, save and end."""
