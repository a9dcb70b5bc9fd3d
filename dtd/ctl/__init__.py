"""`dtdctl`: what an operator types.  Never imports torch."""
