"""The catalogue of algorithms and selection policies. Read `task.spec.algorithms` first."""
