"""Settings: where each comes from, what beats what, and that every mistake is named at once."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout.config
from scaleout.config import EngineOptions, Limits, Mode, ModeConfig
from scaleout.config.flags import FLAGS
from scaleout.config.help import GROUPS, help_text
from scaleout.config.peer_flags import PEER_FLAGS
from scaleout.errors import ConfigError

REPOSITORY = Path(__file__).parent.parent
SWITCH = "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"
RENDER = ("launch", "render", "M")
NOT_YET_READ = {"tokenizer_backend"}
"""Settings of parts that are still to come."""


def load(*argv: str, **environ: str) -> ModeConfig:
    return ModeConfig.load(argv, environ)


def problem(*argv: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        ModeConfig.load(argv, environ)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize(
    ("argv", "environ", "mode"),
    [
        (RENDER, {}, Mode.RENDER_ONLY),
        (("serve", "M"), {}, Mode.STANDARD),
        (("serve", "M", "--tokens-only"), {}, Mode.TOKENS_ONLY),
        (("serve", "--tokens-only", "M"), {}, Mode.TOKENS_ONLY),
        (("serve", "M", "--no-tokens-only"), {}, Mode.STANDARD),
        ((), {"SCALEOUT_MODE": "render-only", "SCALEOUT_MODEL": "M"}, Mode.RENDER_ONLY),
        (("M",), {"SCALEOUT_MODE": "tokens-only"}, Mode.TOKENS_ONLY),
        ((), {"SCALEOUT_MODE": "standard", "SCALEOUT_MODEL": "M"}, Mode.STANDARD),
        (RENDER, {"SCALEOUT_MODE": "render-only"}, Mode.RENDER_ONLY),
        (RENDER, {"SCALEOUT_MODE": ""}, Mode.RENDER_ONLY),
    ],
)
def test_mode(argv: tuple[str, ...], environ: dict[str, str], mode: Mode) -> None:
    config = ModeConfig.load(argv, environ)
    assert config.mode is mode
    assert config.model == "M"


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (RENDER, {"SCALEOUT_MODE": "tokens-only"}, "SCALEOUT_MODE=tokens-only means tokens-only, which conflicts"),
        (("serve", "M"), {"SCALEOUT_MODE": "tokens-only"}, "conflicts with scaleout serve (standard)"),
        (("serve", "M", "--tokens-only"), {"SCALEOUT_MODE": "standard"}, "conflicts with --tokens-only"),
        ((*RENDER, "--tokens-only"), {}, "--tokens-only means tokens-only, which conflicts with scaleout launch render"),
        (("M",), {"SCALEOUT_MODE": "renderonly"}, "unknown mode; it must be one of render-only, tokens-only, standard"),
        (("M",), {}, "no mode chosen"),
        (RENDER[:2], {}, "no model"),
        ((*RENDER, "N"), {}, "unexpected N after the model M"),
        ((*RENDER, "--model", "N"), {}, "two models: M and --model N"),
    ],
)  # fmt: skip
def test_modes_that_cannot_be_meant(argv: tuple[str, ...], environ: dict[str, str], said: str) -> None:
    assert said in problem(*argv, **environ)


# ---------------------------------------------------------------------------------------------- the scale-out switch


@pytest.mark.parametrize(
    ("argv", "value", "expected"),
    [
        (RENDER, None, True),
        (RENDER, "1", True),
        (("serve", "M", "--tokens-only"), None, True),
        (("serve", "M", "--tokens-only"), "1", True),
        (("serve", "M"), None, False),
        (("serve", "M"), "0", False),
        (("serve", "M"), "1", True),
        (("serve", "M", "--enable-scale-out"), None, True),
        (("serve", "M", "--enable-scale-out"), "0", True),
        (("serve", "M", "--no-enable-scale-out"), "1", False),
    ],
)
def test_scale_out_switch(argv: tuple[str, ...], value: str | None, expected: bool) -> None:
    assert ModeConfig.load(argv, {} if value is None else {SWITCH: value}).scale_out is expected


@pytest.mark.parametrize("value", ["2", "", "true", "on", "01", " 1", "-1", "yes"])
@pytest.mark.parametrize("argv", [RENDER, ("serve", "M"), ("serve", "M", "--enable-scale-out")])
def test_only_0_and_1_are_legal(argv: tuple[str, ...], value: str) -> None:
    assert problem(*argv, **{SWITCH: value}) == f"{SWITCH}={value}: the value must be exactly 0 or 1"


@pytest.mark.parametrize(
    ("argv", "environ", "how"),
    [
        (RENDER, {}, "scaleout launch render"),
        (("serve", "M", "--tokens-only"), {}, "--tokens-only"),
        (("M",), {"SCALEOUT_MODE": "render-only"}, "SCALEOUT_MODE=render-only"),
    ],
)
def test_a_dedicated_mode_with_the_switch_off(argv: tuple[str, ...], environ: dict[str, str], how: str) -> None:
    expected = f"VLLM_ENABLE_SCALE_OUT_ENDPOINTS=0 conflicts with {how}; unset it or set it to 1"
    assert problem(*argv, **environ, **{SWITCH: "0"}) == expected
    assert f"conflicts with {how}" in problem(*argv, "--no-enable-scale-out", **environ)


def test_all_conflicts_stand_in_one_error() -> None:
    text = problem(
        *RENDER,
        "--tokens-only",
        "--port",
        "99999",
        "--prot",
        "1",
        **{SWITCH: "0", "SCALEOUT_MODE": "standard", "SCALEOUT_PROT": "1"},
    )
    for part in (
        "6 problems:",
        "--tokens-only means tokens-only",
        "SCALEOUT_MODE=standard means standard",
        f"{SWITCH}=0 conflicts with scaleout launch render; unset it or set it to 1",
        "--port=99999: must be between 0 and 65535",
        "unknown flag --prot (did you mean --port?)",
        "unknown variable SCALEOUT_PROT (did you mean SCALEOUT_PORT?)",
    ):
        assert part in text


# ---------------------------------------------------------------------------------------------- precedence


@pytest.mark.parametrize("suffix", ["toml", "yaml", "json"])
def test_flag_over_own_variable_over_vllm_variable_over_file_over_default(tmp_path: Path, suffix: str) -> None:
    lines = {"toml": "max-stop-strings = 2\n", "yaml": "max_stop_strings: 2\n", "json": '{"max-stop-strings": 2}'}
    file = tmp_path / f"settings.{suffix}"
    file.write_text(lines[suffix])
    argv: list[str] = ["launch", "render", "M"]
    environ: dict[str, str] = {}

    def value() -> int:
        return ModeConfig.load(argv, environ).limits.max_stop_strings

    assert value() == 4
    argv += ["--config", str(file)]
    assert value() == 2
    environ["VLLM_MAX_STOP_STRINGS"] = "5"
    assert value() == 5
    environ["SCALEOUT_MAX_STOP_STRINGS"] = "6"
    assert value() == 6
    argv += ["--max-stop-strings", "7"]
    assert value() == 7


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "model: M\nserved-model-name: [a, b]\ntrust-request-chat-template: true\ndefault-chat-template-kwargs: {enable_thinking: false}\n"
        "disable-uvicorn-access-log: true\nenable-log-requests: true\nport: 81\nmax-model-len: 4k\nmode: render-only\n"
    )
    config = load("--config", str(file))
    assert (config.mode, config.model, config.served_model_names) == (Mode.RENDER_ONLY, "M", ("a", "b"))
    assert config.trust_request_chat_template
    assert config.default_chat_template_kwargs == {"enable_thinking": False}
    assert not config.access_log
    assert (config.port, config.max_model_len) == (81, 4000)
    assert config.notes == (f"enable-log-requests in {file} has no effect: bodies are never logged",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "prot = 1", "unknown key prot in {file} (did you mean port?)"),
        ("a.toml", "port = 'x'", "port in {file}=x: a whole number is needed"),
        ("a.toml", "port = true", "port in {file}=True: a whole number is needed"),
        ("a.toml", "port = ", "--config {file}: Invalid value"),
        (
            "a.toml",
            "mode = 'standard'",
            "mode = standard in {file} means standard, which conflicts with scaleout launch render",
        ),
        ("a.toml", "mode = 'other'", "mode = other in {file}: unknown mode"),
        (
            "a.yaml",
            "tokens-only: true",
            "tokens-only in {file} means tokens-only, which conflicts with scaleout launch render",
        ),
        ("a.yaml", "- 1", "--config {file}: a mapping of flag names to values is needed"),
        ("a.yaml", "a: [", "--config {file}: while parsing"),
        ("a.yaml", "model: [x]", "model in {file}=['x']: text is needed"),
        ("a.json", "{", "--config {file}: "),
        ("a.ini", "x", "the name must end in .toml, .yaml, .yml or .json"),
        ("a.toml", None, "--config {file}: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    assert said.format(file=file) in problem(
        "launch", "render", *([] if "model" in str(content) else ["M"]), "--config", str(file)
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_the_files_that_come_with_the_program(mode: Mode) -> None:
    by_file = load("--config", str(REPOSITORY / "conf" / f"{mode}.toml"), "M")
    by_folder = load("M", SCALEOUT_MODE=mode, SCALEOUT_CONFIG=str(REPOSITORY / "conf"))
    assert by_file.mode is by_folder.mode is mode
    assert attrs.evolve(by_folder, mode_source=by_file.mode_source) == by_file


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_commented_out_in_those_files_would_work(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    file = tmp_path / "all.toml"
    lines = (REPOSITORY / "conf" / f"{mode}.toml").read_text().splitlines()
    file.write_text(
        "\n".join(line.removeprefix("# ") if line.startswith("# ") and " = " in line else line for line in lines)
    )
    config = load("--config", str(file))
    assert config.model == "Qwen/Qwen3-0.6B"
    assert config.notes == ()


# ---------------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--port", "81"], "port", 81),
        (["--port=81"], "port", 81),
        (["--port", "1", "--port", "81"], "port", 81),
        (["--max_model_len", "4K"], "max_model_len", 4096),
        (["--max-model-len", "25.6k"], "max_model_len", 25600),
        (["--max-model-len", "auto"], "max_model_len", None),
        (["--max-model-len", "-1"], "max_model_len", None),
        (["--api-key", "a", "b", "--api-key", "c", "--port", "81"], "api_keys", ("a", "b", "c")),
        (["--api-key", ""], "api_keys", ()),
        (["--api-key=a,b c"], "api_keys", ("a,b c",)),
        (["--served-model-name", "x", "y"], "served_model_names", ("x", "y")),
        ([], "served_model_names", ("M",)),
        (["--trust-request-chat-template"], "trust_request_chat_template", True),
        (["--trust-request-chat-template=false"], "trust_request_chat_template", False),
        (["--disable-uvicorn-access-log"], "access_log", False),
        (["--no-access-log"], "access_log", False),
        (["--disable-access-log-for-endpoints", "/health, /ping"], "disable_access_log_for_endpoints", ("/health", "/ping")),
        (["--default-chat-template-kwargs", '{"a": 1}'], "default_chat_template_kwargs", {"a": 1}),
        (["--override-generation-config.a.b", "true"], "override_generation_config", {"a": {"b": True}}),
        (["--engine-args", '{"a": 1}', "--engine-args.b", "x", "--engine-args.a.c", "2"], "args", {"a": {"c": 2}, "b": "x"}),
        (["--api-server-count", "2"], "workers", 2),
        (["-asc", "2"], "workers", 2),
        (["--uvicorn-log-level", "WARNING"], "log_level", "warning"),
        (["--tokenizer-revision", "v1"], "revision", "v1"),
    ],
)  # fmt: skip
def test_spellings(argv: list[str], field: str, value: object) -> None:
    config = load("serve", "M", "--engine-backend", "vllm", *argv) if field == "args" else load(*RENDER, *argv)
    assert getattr(config.engine if field == "args" else config, field) == value


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port"], "--port needs a value"),
        (["--port", "--uds", "x"], "--port needs a value"),
        (["--api-key"], "--api-key needs a value"),
        (["--port", "8.5"], "--port=8.5: a whole number is needed"),
        (["--port", "4x"], "--port=4x: a whole number is needed"),
        (["--max-logprobs", "-2"], "--max-logprobs=-2: must be at least -1"),
        (["--gpu-memory-utilization", "nan"], "must be between 0.05 and 1"),
        (["--shutdown-timeout", "soon"], "a number is needed"),
        (["--scheduling-policy", "random"], "must be one of fcfs, priority"),
        (["--default-chat-template-kwargs", "[1]"], "a JSON object is needed"),
        (["--default-chat-template-kwargs", "[" * 100_000], "a JSON object is needed"),
        (["--trust-request-chat-template=maybe"], "must be one of 1, 0, true, false"),
        (["-x"], "unknown flag -x"),
        (["--enable-scale-outs"], "unknown flag --enable-scale-outs (did you mean --enable-scale-out?)"),
        (["--tensor-parallel-sise", "2"], "(did you mean --tensor-parallel-size?)"),
    ],
)
def test_values_that_make_no_sense(argv: list[str], said: str) -> None:
    assert said in problem(*RENDER, *argv)


def test_a_secret_is_never_shown() -> None:
    assert "hunter2" not in repr(load(*RENDER, "--api-key", "hunter2", "--hf-token", "hunter2"))
    assert "hunter2" not in problem(*RENDER, "--port", "x", "--api-key", "hunter2")


def test_variables() -> None:
    config = load(
        *RENDER,
        SCALEOUT_API_KEY="a b",
        SCALEOUT_DEFAULT_CHAT_TEMPLATE_KWARGS='{"a": 1}',
        SCALEOUT_ENABLE_REQUEST_ID_HEADERS="true",
        SCALEOUT_PORT="",
        VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT="-1",
        VLLM_LOGGING_LEVEL="DEBUG",
        VLLM_SOMETHING_ELSE="1",
    )
    assert config.api_keys == ("a", "b")
    assert config.default_chat_template_kwargs == {"a": 1}
    assert config.enable_request_id_headers
    assert config.port == 8000
    assert config.limits.max_template_seconds == 0
    assert config.log_level == "debug"
    assert load(*RENDER, VLLM_API_KEY="one key").api_keys == ("one key",)
    assert problem(*RENDER, VLLM_MAX_STOP_STRINGS="many") == (
        "VLLM_MAX_STOP_STRINGS=many: a whole number is needed (4096, 4k = 4000, 4K = 4096, 64MiB)"
    )


def test_what_kubernetes_and_tests_put_into_the_environment_is_not_ours() -> None:
    links = {
        "SCALEOUT_PORT": "tcp://10.0.0.1:8000",
        "SCALEOUT_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "SCALEOUT_PORT_8000_TCP_ADDR": "10.0.0.1",
        "SCALEOUT_SERVICE_HOST": "10.0.0.1",
        "SCALEOUT_SERVICE_PORT_HTTP": "8000",
        "SCALEOUT_RENDER_PORT": "tcp://10.0.0.2:8000",
        "SCALEOUT_RENDER_SERVICE_PORT": "8000",
        "SCALEOUT_TEST_CACHE": "somewhere",
    }
    assert load(*RENDER, **links).port == 8000


def test_chat_template_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert load(*RENDER, "--chat-template", str(file)).chat_template == "{{ messages }}"
    assert load(*RENDER, "--chat-template", "{% if a/b %}{% endif %}").chat_template == "{% if a/b %}{% endif %}"
    assert "there is no such file" in problem(*RENDER, "--chat-template", str(tmp_path / "other"))
    assert "there is no such file" in problem(*RENDER, "--chat-template", "other.jinja")
    file.write_bytes(b"\xff{")
    assert "utf-8" in problem(*RENDER, "--chat-template", str(file))


# ---------------------------------------------------------------------------------------------- settings together


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("serve", "M", "--workers", "2"), "--workers 2 conflicts with scaleout serve"),
        ((*RENDER, "--workers", "2", "--uds", "x"), "--workers 2 conflicts with --uds"),
        ((*RENDER, "--engine-backend", "torch"), "--engine-backend torch conflicts with scaleout launch render"),
        ((*RENDER, "--engine-backend", "remote"), "needs --engine-url"),
        (
            ("serve", "M", "--engine-backend", "echo", "--engine-url", "http://e"),
            "conflicts with --engine-backend echo",
        ),
        (("serve", "M", "--engine-args", '{"a": 1}'), "--engine-args needs --engine-backend vllm"),
    ],
)
def test_settings_that_exclude_each_other(argv: tuple[str, ...], said: str) -> None:
    assert said in problem(*argv)


@pytest.mark.parametrize(
    ("argv", "backend"),
    [
        (RENDER, None),
        ((*RENDER, "--engine-url", "http://a", "http://b"), "remote"),
        (("serve", "M"), "torch"),
        (("serve", "M", "--tokens-only", "--engine-backend", "echo"), "echo"),
        (("serve", "M", "--engine-url", "http://a"), "remote"),
    ],
)
def test_engine_backend(argv: tuple[str, ...], backend: str | None) -> None:
    assert load(*argv).engine_backend == backend


def test_render_only_takes_every_core_and_the_others_one() -> None:
    assert load(*RENDER).workers == scaleout.config.settings.cores()
    assert load(*RENDER, "--uds", "x").workers == 1
    assert load("serve", "M").workers == 1


# ---------------------------------------------------------------------------------------------- flags of vLLM


def test_engine_flags_of_vllm() -> None:
    flags = ("--tensor-parallel-size", "2", "--enforce-eager", "--compilation-config", '{"level": 3}', "-q", "fp8")
    assert load(*RENDER, *flags).notes[0] == "--tensor-parallel-size has no effect: there is no engine in this mode"
    assert "--tensor-parallel-size is an argument of the vllm engine, and this is torch" in problem(
        "serve", "M", *flags
    )
    assert load("serve", "M", "--tensor-parallel-size", "1").notes == ()
    config = load("serve", "M", "--engine-backend", "vllm", *flags, "--engine-args", '{"quantization": "awq"}')
    assert config.engine.args == {
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "compilation_config": {"level": 3},
        "quantization": "awq",
    }


def test_other_flags_of_vllm() -> None:
    assert load(*RENDER, "--no-enable-log-requests", "--trust-remote-code").notes == (
        "--no-enable-log-requests has no effect: bodies are never logged",
        "--trust-remote-code has no effect: code from model repositories is never run",
    )
    assert problem(*RENDER, "--middleware", "x") == "--middleware is not supported: this is not an ASGI program"
    assert load(*RENDER, "--no-enable-lora").notes == ()
    assert problem(*RENDER, "--lora-modules") == "--lora-modules needs a value"


def test_engine_settings_without_an_engine_are_named() -> None:
    assert load(*RENDER, "--max-num-seqs", "4").notes == (
        "--max-num-seqs has no effect: there is no engine in this mode",
    )


def test_no_flag_is_both_a_setting_and_a_flag_of_vllm() -> None:
    assert FLAGS.keys() & PEER_FLAGS.keys() == set()


# ---------------------------------------------------------------------------------------------- the table


def test_every_setting_has_a_flag_a_known_group_and_a_default_that_its_own_reader_accepts() -> None:
    for flag in FLAGS.values():
        assert flag.option.group in GROUPS, flag.name
        if not isinstance(flag.default, attrs.Factory) and flag.default not in (None, "", (), {}):  # type: ignore[arg-type]
            assert flag.option.kind.read(flag.default) == flag.default, flag.name
    fields = {field.name for cls in (ModeConfig, EngineOptions, Limits) for field in attrs.fields(cls)}
    assert fields - {flag.field for flag in FLAGS.values()} == {
        "mode",
        "mode_source",
        "notes",
        "limits",
        "engine",
        "media",
        "web",
    }


def test_every_setting_is_read_by_something() -> None:
    root = Path(scaleout.config.__file__).parent.parent
    text = "".join(path.read_text() for path in root.rglob("*.py") if "config" not in path.relative_to(root).parts)
    unread = {flag.field for flag in FLAGS.values() if flag.field and not re.search(rf"\.{flag.field}\b", text)}
    assert unread - NOT_YET_READ == set()


def test_every_limit_says_why() -> None:
    for field in attrs.fields(Limits):
        assert field.metadata["option"].help.rstrip(".").count(". ") >= 1, f"{field.name} gives no reason"


@pytest.mark.parametrize("command", ["", "launch render", "serve"])
def test_help_shows_every_flag_once_in_its_group(command: str) -> None:
    shown = re.findall(r"^  (?:MODEL, )?--([a-z0-9-]+)", help_text(command), re.MULTILINE)
    assert sorted(shown) == sorted(name for name in FLAGS if name != "tokens-only" or command != "launch render")
    assert "--max-body-bytes" in help_text(command, "limits")
    assert "--port" not in help_text(command, "limits")
    assert "--tensor-parallel-size" in help_text(command, "all")
    with pytest.raises(ValueError, match="there is no such group"):
        help_text(command, "nothing")


# ---------------------------------------------------------------------------------------------- any input


ANY_WORD = st.one_of(st.sampled_from([f"--{name}" for name in (*FLAGS, *PEER_FLAGS)]), st.text(max_size=8))
ANY_VARIABLE = st.sampled_from([flag.env for flag in FLAGS.values() if flag.name != "config"])


@given(st.lists(ANY_WORD, max_size=6), st.dictionaries(ANY_VARIABLE, st.text(max_size=8), max_size=4))
def test_any_input_gives_a_config_or_a_config_error(words: list[str], environ: dict[str, str]) -> None:
    try:
        outcome = ModeConfig.load(["serve", *words], environ).model
    except ConfigError as exc:
        outcome = str(exc)
    assert outcome
