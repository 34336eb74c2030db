"""The rules that stop a lost run, live and on stored logs."""
