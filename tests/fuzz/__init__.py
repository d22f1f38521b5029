"""Damaged and hostile input at every door through which bytes come in: files, names, arguments.

``make test`` tries a little of it, after every input of ``corpus/``; ``make fuzz`` as much as there is time for.
"""
