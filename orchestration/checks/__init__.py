"""Asset checks: is what was committed right, and does the state agree with it?"""
