"""What several others need: outside programs, the command line, TOML, the files of the kit."""
