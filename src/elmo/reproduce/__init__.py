"""The paper's evaluation, made again on open data: its tables, its figures, and whether its claims hold."""
