from octavo.gateway.retry_budget import RetryBudget


def test_budget_grants_a_tenth_of_the_requests_beyond_its_minimum() -> None:
    budget = RetryBudget()
    while budget.take():
        pass
    for _ in range(101):
        budget.request()
    assert sum(budget.take() for _ in range(50)) == 10
