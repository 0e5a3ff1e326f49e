import click


@click.group()
def main() -> None:
    """lmgym: what belongs to no single stage."""
