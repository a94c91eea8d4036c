"""The command line: parsing, help, exit codes; nothing here loads a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chairlift.cli.main import COMMANDS, build_parser, main


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`chairlift COMMAND --help` works for each and exits with 0."""
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"chairlift {command}" in capsys.readouterr().out


def test_serve_takes_the_flags_that_users_know() -> None:
    """The flags of vLLM that we share have its names."""
    flags = (
        "--host 0.0.0.0 --port 1 --api-key k --max-model-len 10 --max-num-seqs 2 --max-num-batched-tokens 64 "
        "--kv-cache-memory 2GiB --kv-cache-dtype f32 --block-size 32 --threads 1 --served-model-name x "
        "--chat-template t.jinja --tokenizer tok.json --seed 5"
    )
    args = build_parser("serve").parse_args(["serve", "m.gguf", *flags.split()])
    assert (args.model, args.kv_cache_memory, args.api_key) == ("m.gguf", 2 * 2**30, ["k"])


@pytest.mark.parametrize("command", ["bench lanes", "generate", "chat", "serve"])
def test_a_command_offers_only_flags_that_act(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The queue limit is the server's, and ids need neither tokenizer, template nor seed."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    text = ("--tokenizer", "--chat-template", "--seed")
    assert ("--max-num-waiting" in shown) == (command == "serve")
    assert all((flag in shown) == (command != "bench lanes") for flag in text)


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        ("lanes", "one lane per request"),
        ("throughput", "offer all requests at once"),
        ("serve", "OpenAI-compatible server"),
    ],
)
def test_each_kind_of_bench_says_what_it_does(
    kind: str, promise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help begins with what it is."""
    with pytest.raises(SystemExit):
        main(["bench", kind, "--help"])
    assert promise in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("bench lanes --requests 0", "--requests is 0; it must be at least 1"),
        ("bench lanes --requests -1", "--requests is -1; it must be at least 1"),
        ("bench lanes -o /nope/x.svg", "--output /nope/x.svg: no folder /nope"),
        ("bench lanes -o /", "--output /: it is a folder"),
        ("serve --step-log /nope/x", "--step-log /nope/x: no folder /nope"),
        ("inspect --threads 1", "--threads is for --quantization"),
        ("serve --step-timeout 0", "--step-timeout is 0; it must be more than 0 seconds"),
        ("serve --step-timeout -1", "--step-timeout is -1; it must be more than 0 seconds"),
        ("serve --step-timeout nan", "--step-timeout is nan; it must be more than 0 seconds"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_work(
    args: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line, before the model (here: one that is not there) is looked at."""
    words = args.split()
    model = ["--model", "/no/such.gguf"] if words[0] == "bench" else ["/no/such.gguf"]
    assert main([*words, *model]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "usage"),
    [
        ("serve --bogus", "chairlift serve [MODEL] [options]"),
        ("inspect m.gguf --bogus", "chairlift inspect [MODEL] [options]"),
        ("bench step X.gguf", "chairlift bench step [options]"),
        ("--bogus env", "chairlift [-h]"),
    ],
)
def test_an_unknown_argument_shows_the_usage_of_its_command(
    args: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever refuses the argument says how it is called itself."""
    with pytest.raises(SystemExit) as stopped:
        main(args.split())
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: {usage}")
    assert "unrecognized arguments: " in err


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_the_model_may_be_a_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """MODEL and --model are one thing; two different models are refused."""
    assert main([command, "--model", "/no/such.gguf"]) == 3
    assert main([command, "/no/such.gguf", "--model", "/no/such.gguf"]) == 3
    assert capsys.readouterr().err.count("no model at '/no/such.gguf'") == 2
    assert main([command, "/no/such.gguf", "--model", "/no/other.gguf"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_wrong_size_says_how_to_write_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The size parser's message reaches the person through argparse."""
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "hi", "--kv-cache-memory", "lots"])
    assert stopped.value.code == 2
    assert "write 512M" in capsys.readouterr().err


def test_a_missing_model_is_one_line_and_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a wrong path: one line on stderr that says what to do."""
    assert main(["generate", "hi", "--model", "/no/such/model.gguf"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no model at '/no/such/model.gguf'" in captured.err
    assert captured.err.count("\n") == 1


def test_a_wrong_setting_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that argparse cannot judge is refused before any model is touched."""
    assert main(["generate", "hi", "--block-size", "20"]) == 2
    assert "--block-size is 20" in capsys.readouterr().err


def test_importing_chairlift_is_light() -> None:
    """`import chairlift` and `import chairlift.core.scheduler` load neither numpy nor anything else heavy."""
    code = (
        "import sys, chairlift, chairlift.core.scheduler; "
        "heavy = {'numpy', 'fastapi', 'tokenizers', 'msgspec', 'jinja2', 'pydantic'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
