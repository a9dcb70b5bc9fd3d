"""dtdctl's commands about runs beside one another: compare, tag, note, and a run repeated."""
