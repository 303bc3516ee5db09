"""``sidecar doctor``: what is wrong with a broker, its spaces and their credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import click

from sidecar.app.diagnosis import Finding, Level, exit_code
from sidecar.app.doctor import Question, examine
from sidecar.cli.main import one_line
from sidecar.cli.space_options import BrokerType, root_option


@click.command()
@root_option
@click.option("--server", "--url", "url", type=BrokerType(), help="The broker, as nats://HOST:PORT.")
@click.option("--space", help="One space.  [default: every space of the directory]")
@click.option(
    "--creds", type=click.Path(path_type=Path), multiple=True, help="A creds file to examine; may be given again."
)
@click.option("--monitor", help="The broker's monitoring address, as http://HOST:PORT; asked without the trust.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_context
def command(
    ctx: click.Context,
    root: Path,
    url: str | None,
    space: str | None,
    creds: Sequence[Path],
    monitor: str | None,
    as_json: bool,
) -> None:
    """Examine a broker, its spaces and their credentials. Changes nothing and shows no secret.

    Each line is a finding: ok, warn, fail, or unknown for what could not be found out, then why it matters and what to
    do. Exit codes: 0 all is well, 1 a warning or something unknown, 2 a failure.
    """
    findings = asyncio.run(examine(Question(root, url, space, tuple(creds), monitor)))
    code = exit_code(findings)
    if as_json:
        click.echo(json.dumps({"exitCode": code, "findings": [one.value() for one in findings]}))
    else:
        for finding in findings:
            click.echo(_text(finding))
    ctx.exit(code)


def _text(finding: Finding) -> str:
    where = f"{finding.space}/{finding.check}" if finding.space else finding.check
    lines = [f"{finding.level:<8}{where}: {one_line(finding.what)}"]
    if finding.level is not Level.OK:
        lines += [
            f"        {word}: {one_line(text)}" for word, text in (("why", finding.why), ("do", finding.do)) if text
        ]
    return "\n".join(lines)
