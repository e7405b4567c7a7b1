"""Faults and attacks on a federation of real processes: what is done to it, and what must hold.

``python -m tests.faults`` (``make faults``) prints the table; ``tests/system/test_faults_*.py`` runs the same
cases one by one. Cases are in ``cases_*.py``, the federation that they share in ``federation.py``, the
programs of the attackers in ``attackers.py``.
"""
