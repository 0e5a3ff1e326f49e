"""trlx's random walks: the graph that a seed names, what a walk is worth, and the start's tokenizer and folder."""

from collections import deque
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from lmgym.environments.random_walks import LETTERS, RandomWalks, draw_random_walks
from lmgym.environments.random_walks_model import build_letter_tokenizer, make_start, train_start
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import tokenize_texts

SEEDS = (1000, 1001, 1002, 7)


@pytest.fixture(scope="module")
def known() -> RandomWalks:
    return draw_random_walks(1000)


def graph(*steps: str, nodes: int) -> RandomWalks:
    """`steps` are pairs of letters: "ba" leads from b to a."""
    edges = np.zeros((nodes, nodes), dtype=bool)
    for start, end in steps:
        edges[LETTERS.index(start), LETTERS.index(end)] = True
    return RandomWalks(edges)


# e and f lead to each other alone
SMALL = graph("aa", "ba", "bc", "cb", "dc", "ef", "fe", nodes=6)


def test_the_walks_of_graph_seed_1000_are_worth_what_trlxs_are(known: RandomWalks) -> None:
    assert len(known.walks) == 1000
    assert round(known.optimality(known.walks).mean(), 3) == 0.352


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_leads_out_of_every_node_none_to_itself_and_none_away_from_the_goal(seed: int) -> None:
    edges = draw_random_walks(seed, walks=0).edges
    assert edges.shape == (21, 21)
    assert edges.any(1).all()
    assert np.flatnonzero(edges.diagonal()).tolist() == [0]
    assert np.flatnonzero(edges[0]).tolist() == [0]
    # 20 nodes with 20 others each; .1 is the chance before graphs with a dead end are drawn anew
    assert 0.07 < edges[1:].sum() / 400 < 0.16


def test_walks_follow_the_steps_from_every_start_to_the_goal_or_ten_nodes(known: RandomWalks) -> None:
    for walk in known.walks:
        nodes = [LETTERS.index(letter) for letter in walk]
        assert all(known.edges[start, end] for start, end in pairwise(nodes))
        assert "a" not in walk[:-1]
        assert 2 <= len(walk) <= 10
        assert walk[-1] == "a" or len(walk) == 10
    assert sorted({walk[0] for walk in known.walks}) == known.prompts == list("bcdefghijklmnopqrstu")
    assert known.tasks[:2] == [{"prompt": "b"}, {"prompt": "c"}]
    assert len(known.tasks) == 20


def test_a_seed_draws_the_same_walks_again_and_another_seed_others(known: RandomWalks) -> None:
    again, other = draw_random_walks(1000), draw_random_walks(1001)
    assert again.walks == known.walks
    assert (again.edges == known.edges).all()
    assert other.walks != known.walks
    assert (other.edges != known.edges).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_shortest_walks_are_those_of_a_breadth_first_search(seed: int) -> None:
    walks = draw_random_walks(seed, walks=0)
    nodes, waiting = {0: 1}, deque([0])
    while waiting:
        end = waiting.popleft()
        for start in np.flatnonzero(walks.edges[:, end]).tolist():
            if start not in nodes:
                nodes[start] = nodes[end] + 1
                waiting.append(start)
    assert walks.shortest.tolist() == [min(nodes.get(node, 10), 10) for node in range(21)]


def test_optimality_is_right_on_a_graph_reckoned_by_hand() -> None:
    assert SMALL.shortest.tolist() == [1, 2, 3, 4, 10, 10]
    worth = {
        "ba": 1, "bcba": 6 / 8, "cba": 1, "dcba": 1, "dcbcba": 4 / 6,
        "bcbcbcba": 2 / 8, "bcbcbcbcba": 0, "bcbcbcbcbcba": 0, "bcbcbcbcbcbaba": 0,  # ten nodes, and twelve
        "ca": 0, "dba": 0, "bcbda": 0,  # steps that are none
        "b": 0, "bc": 0, "": 0,  # never there
        "bax": 1, "bac": 1, "baca": 1, "a": 1,  # what follows the goal does not count
        "bza": 0, "zba": 0, "za": 0, "bu": 0, "b a": 0,  # no nodes of this graph
        "efefefefef": 0, "ea": 0,  # from where no walk can be better
    }  # fmt: skip
    np.testing.assert_allclose(SMALL.optimality(list(worth)), list(worth.values()), rtol=0, atol=1e-12)


def test_what_is_no_letter_of_the_graph_stands_for_no_node_of_it() -> None:
    triangle = graph("aa", "ba", "bc", "cb", "ca", nodes=3)
    assert triangle.optimality(["bca", "cba"]).tolist() == [7 / 8, 7 / 8]
    assert not triangle.optimality(["bza", "zba", "za", "bz", "bdca"]).any()


def test_no_walks_have_no_optimality() -> None:
    assert SMALL.optimality([]).shape == (0,)


def test_reward_and_metric_take_what_trlx_gives_and_look_at_whole_samples() -> None:
    told = (["bcba", "ca"], ["b", "c"], ["cba", "a"], None)
    assert SMALL.reward(*told, origin=["x", "y"]) == [0.75, 0.0]
    assert SMALL.metric(*told, origin=["x", "y"]) == {"optimality": 0.375}


def test_a_letter_is_a_token_and_comes_back(tmp_path: Path, known: RandomWalks) -> None:
    build_letter_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = load_tokenizer(str(tmp_path))
    assert len(tokenizer) == 23
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id, *range(21)}) == 23
    ids = tokenize_texts(tokenizer, list(known.walks))
    assert [[LETTERS[i] for i in row] for row in ids] == [list(walk) for walk in known.walks]
    assert tokenizer("ba").input_ids == [1, 0]
    assert tokenizer.batch_decode(ids) == list(known.walks)
    ended = [1, 0, tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ended) == "ba<|eos|><|pad|>"
    assert tokenizer.decode(ended, skip_special_tokens=True) == "ba"
    with pytest.raises(Exception, match=r"WordLevel"):
        tokenizer("bxa")


def test_a_start_is_made_once_for_its_seeds_and_found_again(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first = make_start(tmp_path, 1000, seed=0, steps=2)
    assert torch.equal(torch.get_rng_state(), before)
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert make_start(tmp_path, 1000, seed=0, steps=2) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    others = [make_start(tmp_path, 1001, seed=0, steps=1), make_start(tmp_path, 1000, seed=1, steps=1)]
    assert sorted(path for path in tmp_path.iterdir()) == sorted([first, *others])  # nothing is left aside

    tokenizer = load_tokenizer(str(first))
    model = load_policy(str(first), tokenizer)
    again, _ = train_start(1000, seed=0, steps=2)
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    config = model.config
    assert (config.n_layer, config.n_embd, config.n_head, config.vocab_size) == (6, 144, 12, 23)
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0, 0, 0)
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_a_start_that_was_made_meanwhile_is_taken(tmp_path: Path, monkeypatch) -> None:
    def other_process_is_quicker(graph_seed: int, seed: int, steps: int):
        (tmp_path / "graph1000_seed0_steps1").mkdir()
        (tmp_path / "graph1000_seed0_steps1/theirs").touch()
        return train_start(graph_seed, seed, steps)

    monkeypatch.setattr("lmgym.environments.random_walks_model.train_start", other_process_is_quicker)
    found = make_start(tmp_path, 1000, seed=0, steps=1)
    assert [path.name for path in found.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [found]
