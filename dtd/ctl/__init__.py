"""`dtdctl`, the operator's command.  Never imports torch."""
