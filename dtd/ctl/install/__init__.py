"""`dtdctl install` and `uninstall`: systemd services of the daemons."""
