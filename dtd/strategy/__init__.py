"""How a step's rows become an update: one strategy a file, behind one seam."""
