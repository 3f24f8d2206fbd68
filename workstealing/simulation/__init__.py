"""Simulations of fleets and their garbage."""
