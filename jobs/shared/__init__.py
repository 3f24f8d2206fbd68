"""The parts of jobs: looks at a due index, walks over keys, moves, and a database's rows."""
