"""A week of traffic for nano: seven days of checkable questions in phrasings that neither its training nor any exam has."""
