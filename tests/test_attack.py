"""AutoAttack: between certified and clean accuracy, exact on linear classifiers, resumable, within its radius."""

import json
import logging

import pytest
import torch
from pyautoattack.autoattack import AutoAttack
from torch import nn

from lbdn import attack, build_network
from lbdn.attack import attacks_for, autoattack
from lbdn.certify import certified_radius
from lbdn.layers import OrthogonalFc, OrthogonalLin
from lbdn.networks import Network

SIDE = 6  # the square attack takes images of at least 5 x 5


class Linear(nn.Module):
    """A classifier whose distance to each boundary is known."""

    def __init__(self, classes: int, gain: float = 3.0) -> None:
        super().__init__()
        self.linear = nn.Linear(SIDE**2, classes)
        self.gain = gain

    def forward(self, x):
        return self.gain * self.linear(x.flatten(1))

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        """Return each image's distance from the nearest boundary, if that is within [0, 1]."""
        W, f = self.linear.weight.detach().double(), self.linear.double()(x.double().flatten(1)).detach()
        self.linear.float()
        top = f.argmax(1)
        gaps = (f.gather(1, top[:, None]) - f) / torch.cdist(W, W)[top].clamp_min(1e-30)
        return gaps.scatter(1, top[:, None], torch.inf).amin(1)


def images(n: int) -> torch.Tensor:
    return 0.4 + 0.2 * torch.rand(n, 1, SIDE, SIDE)


@pytest.fixture
def quick(monkeypatch):
    """Cut the attacks' iterations, which the laws here don't depend on."""
    standard = AutoAttack._set_version

    def cut(self, version="standard"):
        standard(self, version)
        self.square.n_queries = 50
        self.fab.n_iter = self.apgd.n_iter = self.apgd_targeted.n_iter = 30

    monkeypatch.setattr(AutoAttack, "_set_version", cut)


@pytest.fixture
def recorded(monkeypatch):
    """Record what the attack gets and returns: images, labels, perturbed images, answers, radius."""
    calls = []
    run = AutoAttack.run_standard_evaluation

    def record(self, x, y, **options):
        result = run(self, x, y, **options)
        calls.append((x.clone(), y.clone(), *result, self.epsilon))
        return result

    monkeypatch.setattr(AutoAttack, "run_standard_evaluation", record)
    return calls


def column(rows: list[dict], name: str) -> torch.Tensor:
    return torch.tensor([row[name] for row in rows])


def test_the_full_attack_breaks_a_linear_classifier_exactly_where_the_boundary_is_within_the_radius():
    network, x = Linear(4), images(60)
    distances = network.distances(x)
    eps = float(distances.median())
    clear = (distances / eps - 1).abs() > 0.03
    x, distances = x[clear], distances[clear]
    assert distances.max() < 0.4  # so that the box [0, 1] is out of reach
    rows = autoattack(network, x, network(x).argmax(1), eps=[eps], seed=0)
    robust = column(rows, f"robust@{eps:.6g}").bool()
    assert torch.equal(robust, distances > eps)
    assert 10 < robust.sum() < len(robust) - 10


def test_certified_images_stay_robust_and_robust_ones_are_clean_at_every_radius(quick):
    network = build_network("mlp", "sandwich", gamma=1.0, input_shape=(1, SIDE, SIDE), outputs=4)
    x = torch.rand(24, 1, SIDE, SIDE)
    with torch.no_grad():
        network.body[-1].bias -= network(x).mean(0)
    logits = network(x)
    labels = logits.argmax(1)
    labels[:4] = (labels[:4] + 1) % 4
    certified = certified_radius(logits, labels, network.pair_gamma())
    radii = certified[certified > 0].quantile(torch.tensor([0.3, 0.8], dtype=torch.float64)).tolist()
    radii.append(3 * float(certified.max()))
    rows = autoattack(network, x, labels, eps=radii[::-1], seed=0)
    clean = column(rows, "prediction") == labels
    before = clean
    for eps in radii:
        robust = column(rows, f"robust@{eps:.6g}").bool()
        attacked = column(rows, f"attacked@{eps:.6g}")
        assert (robust | (certified <= eps)).all()
        assert (before | ~robust).all()
        assert torch.equal(attacked == labels, robust)
        before = robust
    assert clean.sum() == 20
    assert 0 < (certified > radii[0]).sum() < 20
    inflated = certified * 100 > radii[-1]
    assert (inflated & ~before).any()


def test_what_is_reported_broken_is_broken_by_a_perturbation_within_the_radius_and_the_box(quick, recorded):
    network, x = Linear(4), images(20)
    x[:5] = x[:5].round()  # at the box's corners
    labels = network(x).argmax(1)
    radii = network.distances(x).quantile(torch.tensor([0.3, 0.7], dtype=torch.float64)).tolist()
    rows = autoattack(network, x, labels, eps=radii, seed=0)
    assert [eps for *_, eps in recorded] == radii
    broken = 0
    for x0, y0, x1, _, eps in recorded:
        reported = {row["image"]: row[f"attacked@{eps:.6g}"] for row in rows if not row[f"robust@{eps:.6g}"]}
        for index, answer in reported.items():
            place = (x0 == x[index]).flatten(1).all(1).nonzero().flatten()
            if len(place):  # else broken at a smaller radius
                moved = x1[place]
                assert (moved - x0[place]).double().norm() <= eps * (1 + 1e-5)
                assert moved.min() >= 0
                assert moved.max() <= 1
                assert network(moved).argmax() == answer != y0[place]
                broken += 1
    assert broken == (column(rows, f"robust@{radii[1]:.6g}") == 0).sum() > 5


def test_a_perturbation_beyond_the_radius_does_not_count(monkeypatch):
    network, x = Linear(3), images(4)
    labels = network(x).argmax(1)

    def leap(self, x, y, **_):
        step = torch.zeros_like(x)
        step[:2, 0, 0, 0], step[2:, 0, 0, 0] = 0.99 * self.epsilon, 1.01 * self.epsilon
        return x + step, (y + 1) % 3

    monkeypatch.setattr(AutoAttack, "run_standard_evaluation", leap)
    rows = autoattack(network, x, labels, eps=[0.1], seed=0)
    assert column(rows, "robust@0.1").tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("classes", [2, 3, 4, 11])
def test_few_classes_are_attacked_too(quick, recorded, caplog, classes):
    network, x = Linear(classes), images(12)
    eps = float(network.distances(x).median())
    with caplog.at_level(logging.WARNING):
        rows = autoattack(network, x, network(x).argmax(1), eps=[eps], seed=0)
    assert len(recorded) == 1
    assert 1 <= column(rows, f"robust@{eps:.6g}").sum() <= 11
    assert "not possible" not in caplog.text


@pytest.fixture
def certified_task(quick):
    """Twenty images, two of them misclassified, at radii at which most, half and few of them are certified."""
    torch.manual_seed(3)
    network = Network([nn.Flatten(), OrthogonalFc(SIDE**2, 24), OrthogonalLin(24, 4)], outputs=4, gamma=1.0)
    x = torch.rand(20, 1, SIDE, SIDE)
    with torch.no_grad():
        network.body[-1].bias -= network(x).mean(0)
        logits = network(x)
    labels = logits.argmax(1)
    labels[:2] = (labels[:2] + 1) % 4
    certified = certified_radius(logits, labels, network.pair_gamma())
    radii = certified[certified > 0].quantile(torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)).tolist()
    return {"network": network, "images": x, "labels": labels, "eps": radii, "seed": 0, "certified": certified}


def counted(network: nn.Module) -> list[int]:
    """Return a list that collects the number of examples of each forward pass, also of a copy."""
    counts: list[int] = []
    network.register_forward_hook(lambda _module, args, _output: counts.append(len(args[0])))
    return counts


def robust_sets(rows: list[dict], radii: list[float]) -> list[list[int]]:
    return [[row["image"] for row in rows if row[f"robust@{eps:.6g}"]] for eps in radii]


def test_skipping_certified_images_gives_the_robust_sets_of_separate_runs_at_half_the_forward_passes(certified_task):
    radii = certified_task["eps"]
    counts = counted(certified_task["network"])
    separate = [run(certified_task, eps=[eps], certified=None) for eps in radii]
    full = sum(counts)
    expected = [robust_sets(rows, [eps])[0] for rows, eps in zip(separate, radii, strict=True)]
    assert [len(robust) for robust in expected] == sorted({len(robust) for robust in expected}, reverse=True)
    for audit in (0, 2, 20):
        counts.clear()
        assert robust_sets(run(certified_task, audit=audit, batch_size=8), radii) == expected
        assert audit == 20 or sum(counts) < full / 2
    wrong = certified_task["certified"] * 3
    assert robust_sets(run(certified_task, audit=0, certified=wrong), radii) != expected


@pytest.mark.parametrize("audit", [0, 3])
def test_rows_tell_what_was_attacked(certified_task, recorded, audit):
    radii, x = certified_task["eps"], certified_task["images"]
    rows = run(certified_task, audit=audit)
    seen = {eps: {int((x == image).flatten(1).all(1).nonzero()) for image in inputs} for inputs, *_, eps in recorded}
    broken: set[int] = set()
    for eps in radii:
        decided = {row["image"]: row[f"decided_by@{eps:.6g}"] for row in rows}
        certified = {row["image"] for row in rows if row["radius"] > eps}
        of = {kind: {image for image, by in decided.items() if by == kind} for kind in set(decided.values())}
        assert seen.get(eps, set()) == of.get("attack", set()) | of.get("audit", set())
        assert of["prediction"] == {0, 1}
        assert of.get("smaller radius", set()) == broken
        assert of.get("certificate", set()) | of.get("audit", set()) == certified
        assert len(of.get("audit", set())) == min(audit, len(certified))
        broken |= {row["image"] for row in rows if not row[f"robust@{eps:.6g}"]} - {0, 1}
    assert broken
    assert certified


def test_the_audited_images_depend_on_the_seed_alone(certified_task):
    def audited(**changes) -> set[int]:
        rows = run(certified_task, audit=3, **changes)
        return {row["image"] for row in rows if row[f"decided_by@{certified_task['eps'][0]:.6g}"] == "audit"}

    first = audited()
    torch.manual_seed(9)
    assert audited(batch_size=7) == first
    assert any(audited(seed=seed) != first for seed in (1, 2))


def test_a_broken_certificate_stops_the_attack_and_names_image_radius_and_certificate(certified_task):
    radii = [4 * max(certified_task["eps"])]
    inflated = certified_task["certified"] * 1000
    largest = int(inflated.argmax())
    said = rf"certified at \d+\.?\d* and broken at {radii[0]:.6g}: predicted as"
    with pytest.raises(ValueError, match=said):
        run(certified_task, eps=radii, certified=inflated, audit=20)
    alone = torch.zeros_like(inflated)
    alone[largest] = inflated[largest]
    numbers = [100 + i for i in range(20)]
    with pytest.raises(ValueError, match=f"image {100 + largest} is certified at {float(alone[largest]):.6g}"):
        run(certified_task, eps=radii, certified=alone, audit=1, numbers=numbers)
    assert not run(certified_task, eps=radii, certified=None)[largest][f"robust@{radii[0]:.6g}"]
    unnoticed = run(certified_task, eps=radii, certified=alone, audit=0)
    assert unnoticed[largest][f"robust@{radii[0]:.6g}"] == 1


def test_a_certificate_of_a_wrong_prediction_is_refused(certified_task):
    certified_task["certified"][1] = 1.0
    with pytest.raises(ValueError, match="image 1 is certified"):
        run(certified_task, audit=0)


def test_certificates_of_other_images_are_refused(task):
    with pytest.raises(ValueError, match=r"each of 9 images, got \(3,\)"):
        run(task, certified=torch.zeros(3))


def test_the_attacks_are_the_standard_ones_where_the_classes_allow():
    assert attacks_for(10) == attacks_for(1000) == (("apgd-ce", "apgd-t", "fab-t", "square"), 9)
    assert attacks_for(4) == (("apgd-ce", "apgd-t", "fab-t", "square"), 3)
    with pytest.raises(ValueError, match="two classes, got 1"):
        attacks_for(1)


def test_full_iterations_targets_and_order_are_those_of_the_standard_version():
    adversary = attack._adversary(Linear(12), 12, 0.1, 0, torch.device("cpu"))
    standard = AutoAttack(Linear(12), norm="L2", eps=0.1, version="standard")
    assert adversary.attacks_to_run == standard.attacks_to_run
    for name, options in {
        "apgd": ("n_restarts", "n_iter"),
        "apgd_targeted": ("n_restarts", "n_iter", "n_target_classes"),
        "fab": ("n_restarts", "n_iter", "n_target_classes"),
        "square": ("n_restarts", "n_queries"),
    }.items():
        for option in options:
            assert getattr(getattr(adversary, name), option) == getattr(getattr(standard, name), option)


@pytest.fixture
def task():
    network, x = Linear(3), images(9)
    eps = float(network.distances(x).median())
    return {"network": network, "images": x, "labels": network(x).argmax(1), "eps": [eps], "seed": 0, "batch_size": 4}


def run(task: dict, **changes) -> list[dict]:
    task = task | changes
    return autoattack(task.pop("network"), task.pop("images"), task.pop("labels"), **task)


def test_rows_are_in_order_and_complete(quick, task):
    rows = run(task)
    assert [row["image"] for row in rows] == list(range(9))
    assert column(rows, "label").tolist() == task["labels"].tolist()
    eps = f"{task['eps'][0]:.6g}"
    names = ["image", "label", "prediction", "radius", f"robust@{eps}", f"attacked@{eps}", f"decided_by@{eps}"]
    assert all(list(row) == names for row in rows)
    assert [row["image"] for row in run(task, numbers=[20, 7, 3, 1, 4, 8, 6, 2, 0])] == [20, 7, 3, 1, 4, 8, 6, 2, 0]


def test_the_result_depends_on_the_seed_and_not_on_the_global_random_state(quick, task, recorded):
    torch.manual_seed(1)
    first = run(task)
    torch.manual_seed(2)
    assert run(task) == first
    run(task, seed=1)
    perturbed = [x1 for _, _, x1, _, _ in recorded]
    assert all(torch.equal(a, b) for a, b in zip(perturbed[:3], perturbed[3:6], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(perturbed[:3], perturbed[6:], strict=True))


def test_the_attack_leaves_the_network_and_the_images_as_they_were(quick, task):
    network, x = task["network"].train(), task["images"].clone()
    network.linear.weight.grad = torch.ones_like(network.linear.weight)
    before = network.linear.weight.detach().clone()
    run(task)
    assert torch.equal(task["images"], x)
    assert torch.equal(network.linear.weight, before)
    assert torch.equal(network.linear.weight.grad, torch.ones_like(before))
    assert network.training
    assert network.linear.weight.requires_grad


def test_an_interrupted_attack_goes_on_where_it_was(quick, task, tmp_path, monkeypatch):
    eps = task["eps"][0]
    small, both = [eps / 2], [eps / 2, eps]
    task["eps"] = both
    expected = run(task)
    rounds = []
    attack_batch = attack._attack_batch

    def interrupted(*args):
        rounds.append(args[-1])
        if len(rounds) in (2, 4):
            raise KeyboardInterrupt
        return attack_batch(*args)

    monkeypatch.setattr(attack, "_attack_batch", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(task, state=tmp_path / "state.json")
    assert run(task, state=str(tmp_path / "state.json")) == expected
    assert rounds == [small, both, both, small, small, both, small, both]


def poisoned(task: dict, state) -> dict:
    """Finish the task with a state file, then write an impossible prediction into that."""
    run(task, state=state, identity={"weights": "abc"})
    saved = json.loads(state.read_text())
    saved["rows"][0]["prediction"] = 99
    state.write_text(json.dumps(saved))
    return saved


def test_a_state_file_of_the_same_arguments_is_used(quick, task, tmp_path):
    saved = poisoned(task, tmp_path / "state.json")
    assert run(task, state=tmp_path / "state.json", identity={"weights": "abc"}) == saved["rows"]


@pytest.mark.parametrize(
    "changed",
    ["seed", "eps", "batch_size", "identity", "number of images", "images", "labels", "certified", "audit", "numbers"],
)
def test_a_state_file_of_other_arguments_is_ignored(quick, task, tmp_path, changed):
    state = tmp_path / "state.json"
    poisoned(task, state)
    other = {
        "seed": {"seed": 1},
        "eps": {"eps": [*task["eps"], 0.001]},
        "batch_size": {"batch_size": 9},
        "identity": {"identity": {"weights": "abd"}},
        "number of images": {"images": task["images"][:8], "labels": task["labels"][:8]},
        "images": {"images": images(9)},
        "labels": {"labels": (task["labels"] + 1) % 3},
        "certified": {"certified": torch.zeros(9)},
        "audit": {"audit": 3},
        "numbers": {"numbers": list(range(1, 10))},
    }[changed]
    changes = {"identity": {"weights": "abc"}} | other
    assert run(task, state=state, **changes) == run(task, **changes)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_images_outside_the_unit_box_are_refused(task, value):
    task["images"][3, 0, 2, 2] = value
    with pytest.raises(ValueError, match=r"pixels in \[0, 1\]"):
        run(task)


@pytest.mark.parametrize("eps", [0.1, [], [0.0], [0.1, -0.1], [float("nan")], [0.1, 0.1000000001]])
def test_radii_that_are_not_positive_and_distinct_are_refused(task, eps):
    with pytest.raises(ValueError, match=r"eps takes (positive, finite )?radii"):
        run(task, eps=eps)


def test_no_images_are_refused(task):
    with pytest.raises(ValueError, match="at least one image"):
        run(task, images=task["images"][:0], labels=task["labels"][:0])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(9), r"int64 of shape \(9,\), got torch.float32"),
        (torch.arange(8) % 3, r"int64 of shape \(9,\), got .*\(8,\)"),
        (torch.arange(10) % 3, r"int64 of shape \(9,\), got .*\(10,\)"),
        (torch.arange(9) % 4, "0 to 2, got 0 to 3"),
    ],
)
def test_labels_that_are_no_classes_of_the_images_are_refused_before_any_attack(task, recorded, labels, message):
    with pytest.raises(ValueError, match=message):
        run(task, labels=labels)
    assert not recorded


def test_a_network_with_one_output_is_refused(task):
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        run(task, network=Linear(1), labels=torch.zeros(9, dtype=torch.int64))


def test_images_without_channels_are_refused(task):
    with pytest.raises(ValueError, match=r"\(n, channels, h, w\).* got \(9, 6, 6\)"):
        run(task, images=task["images"].squeeze(1))


def test_an_empty_batch_is_refused(task):
    with pytest.raises(ValueError, match="batch_size takes a positive whole number, got 0"):
        run(task, batch_size=0)


def test_images_that_the_square_attack_cannot_take_are_refused_by_name(quick):
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ValueError, match=r"4, 4"):
        autoattack(network, torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 2]), eps=[1e-4], seed=0)


def test_images_that_nothing_breaks_have_an_infinite_radius_and_a_state_file(certified_task, tmp_path):
    certified = certified_task["certified"]
    task = certified_task | {"certified": torch.where(certified > certified.median(), torch.inf, certified)}
    first = run(task, audit=0, state=tmp_path / "state.json")
    assert first == run(task, audit=0, state=tmp_path / "state.json")
    assert sum(row["radius"] > 1e300 for row in first) == 10
