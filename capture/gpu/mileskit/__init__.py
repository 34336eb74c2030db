"""The modules behind the kit's programs, one folder a job. Standard library, Python 3.10."""
