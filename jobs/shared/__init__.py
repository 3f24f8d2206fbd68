"""The parts that several jobs share, and the statements of one: nothing here is a job."""
