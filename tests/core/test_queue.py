from chairlift.core.queue import WaitingQueue
from chairlift.core.request import Request
from chairlift.sampling_params import SamplingParams


def requests(names):
    return [Request(name, [1], SamplingParams(), seed=0) for name in names]


def test_newcomers_queue_at_the_back_and_preempted_ones_at_the_front():
    """Requests preempted newest first end up in front of everyone, in order of arrival."""
    a, b, c, d = requests("abcd")
    queue = WaitingQueue()
    queue.push_back(c)
    queue.push_back(d)
    queue.push_front(b)
    queue.push_front(a)
    assert list(queue) == [a, b, c, d]
    assert len(queue) == 4


def test_requests_leave_from_anywhere():
    """An abort takes a request out of the middle; a request of the same name is not it."""
    a, b, c = requests("abc")
    queue = WaitingQueue()
    for request in (a, b, c):
        queue.push_back(request)
    queue.remove(b)
    assert list(queue) == [a, c]
    assert a in queue
    assert b not in queue
    assert requests("a")[0] not in queue
