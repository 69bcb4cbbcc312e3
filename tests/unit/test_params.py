"""Bad parameters give one line that names file, key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkit.errors import ParamsError
from agentkit.params import TrainParams, read_yaml

DEMO = Path(__file__).resolve().parents[2] / "params" / "demo" / "02_train.yaml"


def changed(tmp_path, old, new):
    text = DEMO.read_text()
    assert old in text
    path = tmp_path / "02_train.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_a_misspelt_key_is_named_with_its_likely_meaning(tmp_path):
    path = changed(tmp_path, "learning_rate:", "learnin_rate:")
    with pytest.raises(ParamsError, match=r"02_train.yaml: unknown key .*learning_rate"):
        TrainParams.from_yaml(path)


def test_a_number_that_yaml_reads_as_text_is_explained(tmp_path):
    path = changed(tmp_path, "learning_rate: 1.0e-04", "learning_rate: 1e-5")
    assert read_yaml(path)["learning_rate"] == "1e-5"
    with pytest.raises(ParamsError, match=r"learning_rate = '1e-5' \(str\).*1\.0e-5"):
        TrainParams.from_yaml(path)


def test_a_missing_key_is_named(tmp_path):
    path = changed(tmp_path, "steps: 2\n", "")
    with pytest.raises(ParamsError, match="steps is missing"):
        TrainParams.from_yaml(path)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("steps: 2", "steps: true", "steps"),
        ("steps: 2", "steps: 0", "steps"),
        ("dtype: bfloat16", "dtype: int4", "dtype"),
        ("temperature: 1.0", "temperature: .nan", "temperature"),
        ("harness: pi", "harness: 7", "harness"),
    ],
)
def test_wrong_types_and_ranges_are_refused(tmp_path, old, new, name):
    with pytest.raises(ParamsError, match=name) as caught:
        TrainParams.from_yaml(changed(tmp_path, old, new))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_yaml_is_named_with_its_line(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb: [1,\n")
    with pytest.raises(ParamsError, match=r"x\.yaml:\d"):
        read_yaml(path)
    with pytest.raises(ParamsError, match=r"absent\.yaml"):
        read_yaml(tmp_path / "absent.yaml")


def test_run_dir_and_engine_url_do_not_change_the_digest_but_the_seed_does():
    params = TrainParams.from_yaml(DEMO)
    same = params.model_copy(update={"run_dir": "elsewhere", "engine_url": "http://x"})
    assert same.digest() == params.digest()
    assert params.model_copy(update={"seed": 1}).digest() != params.digest()
