"""The part of the contract that is about arguments, and about an object that was closed."""

from __future__ import annotations

import re

from apressure.exceptions import ClientClosedError, DeadlineError
from apressure.testing.contract.steps import Opener, Words, fails
from apressure.testing.contract.verbs import BAD, VERBS, call


class ArgumentContract(Words):
    """Bad arguments are refused, and change nothing. So does a `deadline=` that has passed."""

    async def test_bad_arguments_have_the_same_error(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create(bound=1)
        for verb, arguments in VERBS.items():
            for name in re.findall(r"\w+", arguments) if verb != "producer" and hasattr(queue, verb) else ():
                for value, error, text in BAD.get(name, ()):
                    raised = await fails(error, call(queue, verb, **{name: value}))
                    self.says(raised, text)
                    assert type(raised) is error, (verb, name, value)
        raised = await fails(ValueError, queue.requeue(1, ids=["1"]))
        self.says(raised, "give either max_items= or ids=: the ids say how many$")
        assert (await owner.qsize(), await owner.closed()) == (0, False)

    async def test_a_deadline_of_0_does_nothing(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await owner.put(b"0")
        for verb in VERBS:
            if "deadline" in VERBS[verb] and hasattr(queue, verb):
                error = await fails(DeadlineError, call(queue, verb, deadline=0))
                assert type(error) is DeadlineError, verb
                self.says(error, "the operation on the queue %r did not end within its deadline of 0 s")
        assert (await owner.qsize(), await owner.closed()) == (1, False)

    async def test_a_closed_object_says_so(self, open_queue: Opener) -> None:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await queue.aclose()
        for verb in VERBS:
            if "deadline" in VERBS[verb] and hasattr(queue, verb):
                await fails(ClientClosedError, call(queue, verb))
