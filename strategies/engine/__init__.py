"""The round: rules, phases, checking and folding of replies, the loop and its journal."""
