"""What the programs of peers know of the broker; their environments have nothing of Weir."""


def properties(client: str) -> dict[str, str]:
    """The client properties in the file ``client``, librdkafka's or Java's."""
    with open(client, encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
