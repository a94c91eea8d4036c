import pytest

from chairlift.config import POLICIES
from chairlift.core.policy import FcfsPolicy, make_policy
from chairlift.core.queue import WaitingQueue
from chairlift.core.request import Request
from chairlift.errors import ConfigError
from chairlift.sampling_params import SamplingParams


def test_fcfs_boards_in_arrival_order_and_preempts_the_newest():
    """First come, first served, both ways."""
    a, b, c = (Request(name, [1], SamplingParams(), seed=0) for name in "abc")
    queue = WaitingQueue()
    for request in (a, b, c):
        queue.push_back(request)
    policy = FcfsPolicy()
    assert list(policy.order(queue, 0.0)) == [a, b, c]
    assert policy.may_admit(c, [a, b], 0.0)
    assert list(policy.victims([a, b, c], a, 0.0)) == [c, b, a]


def test_every_policy_of_the_settings_can_be_made():
    """The names that the settings allow are those that exist; another one is an error naming the flag."""
    for name in POLICIES:
        make_policy(name)
    with pytest.raises(ConfigError, match="--scheduling-policy is 'lifo'"):
        make_policy("lifo")
