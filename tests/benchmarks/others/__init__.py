"""Other libraries, each measured in a process and an environment of its own: nothing in this package imports apressure.

A module is one library, used as its documentation says it goes fastest. Where that says nothing, the better of what was
tried is here, and a comment has what else that was. No result is kept where an option says so, since ours has none.
"""
