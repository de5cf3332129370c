"""`bathy sample`: text that a language model writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def sample(
    run: Annotated[Path, typer.Argument(help="Run, checkpoint or model folder of a causal language model.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Text to continue; may be given several times. Default: none.")
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Continuations of each prompt.")] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens to add at most.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 likelier tokens, above 1 more variety; 0: likeliest.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among so many likeliest tokens only; 0: all.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the fewest tokens that together have this probability; 1: all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    average: Annotated[int, typer.Option(min=1, help="Last checkpoints of a run to average.")] = 1,
    checkpoint: Annotated[str, typer.Option(help="last, best, or an update's number.")] = "last",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line: prompt, continuation.")] = False,
) -> None:
    """Continue text with a trained model; a single continuation appears as it is written.

    Example: bathy sample runs/lm_stdlib_24l --prompt "def parse(" --length 200 --temperature 0.8 --top-p 0.95
    """
    from json import dumps

    from bathy.tasks.language.sample import Sampler
    from bathy.tasks.language.sampling import Sampling

    given = {"length": length, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling = Sampling(**_settings(run) | {name: value for name, value in given.items() if value is not None})
    sampler = Sampler.load(run, average, checkpoint)
    prompts = [text for text in prompt or [""] for _ in range(number)]
    if len(prompts) == 1 and not json:
        typer.echo(prompts[0], nl=False)
        for (text,) in sampler.stream(prompts, sampling):
            typer.echo(text, nl=False)
        typer.echo()
        return
    for begun, text in zip(prompts, sampler.texts(prompts, sampling), strict=True):
        typer.echo(dumps({"prompt": begun, "continuation": text}, ensure_ascii=False) if json else f"{begun}{text}\n{'─' * 20}")


def _settings(folder: Path) -> dict[str, Any]:
    """The run's own [sample] section, if there is one."""
    from bathy.tasks import read_config
    from bathy.tasks.models import home

    config = home(folder) / "config.toml"
    return dict(read_config(config, needs="language").sample) if config.exists() else {}
