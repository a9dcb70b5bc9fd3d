"""`dtdctl`, the operator's command.  Never imports torch.  `main` tells each `DtdError`."""
