"""Route a request over three vendors with fallback. Runs offline."""

from agent import RetryConfig, Router, Target, errors
from agent.testing import scripted_agent


def main() -> None:
    """Scripted agents replace the vendors; everything else is as in production."""
    overloaded = scripted_agent(*[errors.OverloadedError("no capacity")] * 3, model="large")
    limited = scripted_agent(errors.RateLimitError("slow down", retry_after=30.0), model="medium")
    healthy = scripted_agent("Paris.", "Paris, still.", model="small")
    router = Router(
        [Target(overloaded, name="large"), Target(limited, name="medium"), Target(healthy, name="small")],
        retry=RetryConfig(max_retries=3),
    )

    response = router.complete("What is the capital of France?")
    print(response.text, end="\n\n")
    print(response.route, end="\n\n")

    print("Who would be asked next?", end="\n\n")
    print(router.explain("And of Italy?"))


if __name__ == "__main__":
    main()
