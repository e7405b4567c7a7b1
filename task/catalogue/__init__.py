"""The catalogue of algorithms and selection policies. Read `task.catalogue.algorithms` first."""
