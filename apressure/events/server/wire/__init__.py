"""The wire format of Redis (RESP2 and RESP3), as a server sees it: bytes become commands, replies become bytes.

The rule that these modules keep: no I/O, no clock, no event loop. Bytes are fed in and taken out.
"""
