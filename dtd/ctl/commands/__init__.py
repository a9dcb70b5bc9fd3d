"""The commands of dtdctl, a module for each group of them."""
