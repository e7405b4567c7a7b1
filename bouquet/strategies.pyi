from strategies import *  # noqa: F403 - names and signatures for editors, from the stub there
