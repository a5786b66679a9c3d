"""The reliability factory: klover's promise, "an answer is right or it is refused", on thousands of random targets."""
