"""Policies, which map observations to actions: one file per kind, and their networks."""
