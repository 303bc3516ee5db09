"""The state machines of the endpoint, one table each: the code asks them, the docs print them, the tests walk them."""
