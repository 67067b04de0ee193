"""A typed, validated view of ``params.yaml``: unknown keys and wrong types are errors that name the key."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from lbdn import registry


def _not_a_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a valid number")
    return value


def _distinct(values: list[float]) -> list[float]:
    if len(set(values)) < len(values):
        raise ValueError("Input should be distinct numbers")
    return values


# Not strict: DVC writes 1e-3, which YAML 1.1 reads as text.
Positive = Annotated[float, BeforeValidator(_not_a_truth_value), Strict(False), Field(gt=0, allow_inf_nan=False)]
# `none`, the bound of unconstrained networks, is None.
Gamma = Annotated[Positive | None, BeforeValidator(lambda value: None if value == "none" else value)]
Radii = Annotated[list[Positive], Field(min_length=1), AfterValidator(_distinct)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(_Section):
    """Where a data set comes from, and how much of it is kept; what else is there are options of the source."""

    model_config = ConfigDict(extra="allow")

    source: str
    train_images: Count | None = None
    test_images: Count | None = None
    subset_seed: Seed = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of the source."""
        return dict(self.model_extra or {})


class Normalization(_Section):
    """Mean and standard deviation of each channel, on [0, 1], which are subtracted and divided by."""

    mean: list[float]
    std: list[Positive]


class Training(_Section):
    """How a network is trained.

    ``normalize``: by the statistics of the training images, by given ones, or not at all.
    """

    loss: dict[str, Any]
    epochs: Count
    batch_size: Count
    learning_rate: Positive
    augmentation: str = "none"
    normalize: bool | Normalization = True
    last_layer_normalization: bool = False


class Model(_Section):
    """A network that was trained elsewhere: the file that holds it, and which contents are meant.

    The digest stands for the file, which is needed once: whoever has the run folder does without it.
    """

    path: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Lipschitz(_Section):
    """The search for an empirical lower bound."""

    pairs: Count
    steps: Count
    radius: Positive
    learning_rate: Positive
    seed: Seed
    layers: bool = False


class Attack(_Section):
    """AutoAttack: on how many test images, at which radii (numerators over 255).

    ``audit``: how many images to attack at a radius at which they are certified; all, to leave no image out.
    """

    images: Count | Literal["all"]
    radii_255: Radii
    batch_size: Count
    seed: Seed
    audit: Annotated[int, Field(ge=0)] | Literal["all"] = 10


class Certify(_Section):
    """The radii (numerators over 255) at which certified accuracy is reported."""

    radii_255: Radii


class Cell(NamedTuple):
    """One network of an experiment; gamma is None where it has no bound."""

    family: str
    size: str
    gamma: float | None
    seed: int


class Axes(_Section):
    """Families, sizes and Lipschitz bounds of which an experiment trains every combination."""

    families: list[str]
    sizes: list[str]
    gammas: list[Gamma]


class Experiment(_Section):
    """An experiment: the axes of its grids, and the settings that its runs share. Without seeds it is off.

    ``gammas`` is None where the top-level ``gamma`` takes its place; ``published`` names another experiment, whose
    values in the paper stand beside this one's. One network that was trained elsewhere has a ``model`` in place of
    ``training``.
    """

    dataset: str
    architecture: str
    published: str | None = None
    families: list[str]
    sizes: list[str]
    gammas: list[Gamma] | None = None
    baselines: Axes | None = None
    seeds: list[Seed]
    model: Model | None = None
    trained: Training | None = Field(default=None, alias="training")
    lipschitz: Lipschitz | None = None
    attack: Attack | None = None
    certify: Certify | None = None

    @property
    def training(self) -> Training:
        """How its networks are trained.

        Raises:
            ValueError: for a model that was trained elsewhere.
        """
        if self.trained is None:
            raise ValueError("an experiment with a `model` in params.yaml trains nothing; run stages.adopt")
        return self.trained

    @model_validator(mode="after")
    def _trained_here_or_elsewhere(self) -> Self:
        if (self.trained is None) == (self.model is None):
            raise ValueError("takes either `training` or `model`")
        return self


class Params(_Section):
    """All of ``params.yaml``."""

    gamma: Positive
    datasets: dict[str, Source]
    experiments: dict[str, Experiment]

    def experiment(self, name: str) -> Experiment:
        """Return an experiment.

        Raises:
            ValueError: if there is none of that name.
        """
        if name not in self.experiments:
            raise ValueError(f"no experiment {name!r} in params.yaml; there are {', '.join(self.experiments)}")
        return self.experiments[name]

    def cells(self, name: str) -> list[Cell]:
        """Return the networks of an experiment, the baselines first."""
        experiment = self.experiment(name)
        gammas = experiment.gammas
        own = Axes(
            families=experiment.families, sizes=experiment.sizes, gammas=[self.gamma] if gammas is None else gammas
        )
        return [
            Cell(family, size, gamma if registry.find("families", family).bounded else None, seed)
            for grid in (experiment.baselines, own)
            if grid is not None
            for family in grid.families
            for size in grid.sizes
            for gamma in grid.gammas
            for seed in experiment.seeds
        ]

    def needs(self, dataset: str) -> bool:
        """Return whether an experiment that is on uses a data set."""
        return any(self.cells(name) for name, experiment in self.experiments.items() if experiment.dataset == dataset)


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Return the validated contents of a parameter file.

    Every top-level key but ``gamma`` and ``datasets`` is an experiment.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: listing each key that is unknown, missing or of the wrong type, with what was got.
    """
    if not path.exists():
        raise FileNotFoundError(f"no {path.resolve()}; run stages from the folder that holds params.yaml")
    try:
        contents = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(contents, dict):
        raise ValueError(f"{path} takes keys and values, got {contents!r}")
    known = {key: contents[key] for key in ("gamma", "datasets") if key in contents}
    experiments = {key: value for key, value in contents.items() if key not in known}
    try:
        params = Params.model_validate(known | {"experiments": experiments})
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            keys = [str(key) for key in problem["loc"] if key != "experiments"]
            problems.append(f"  {'.'.join(keys)}: {problem['msg']} (got {problem['input']!r})")
        raise ValueError(f"{path} has {len(problems)} wrong entries:\n" + "\n".join(problems)) from error
    for name, source in params.datasets.items():
        if source.source not in registry.names("sources"):
            known_names = ", ".join(registry.names("sources"))
            raise ValueError(f"{path}: datasets.{name}.source takes one of {known_names}, got {source.source!r}")
    for name, experiment in params.experiments.items():
        if experiment.dataset not in params.datasets:
            raise ValueError(
                f"{path}: {name}.dataset takes one of {', '.join(params.datasets)}, got {experiment.dataset!r}"
            )
        families = experiment.families + (experiment.baselines.families if experiment.baselines else [])
        for kind, used in (("architectures", [experiment.architecture]), ("families", families)):
            unknown = sorted(set(used) - set(registry.names(kind)))
            if unknown:
                known_names = ", ".join(registry.names(kind))
                raise ValueError(f"{path}: {name} names no {unknown[0]!r} among the {kind}; there are {known_names}")
        if experiment.model and len(params.cells(name)) > 1:
            raise ValueError(
                f"{path}: {name}.model is one network, but its grid has {len(params.cells(name))}; name one family, "
                "size, gamma and seed, and no baselines"
            )
        for cell, count in Counter(params.cells(name)).items():
            if count > 1:
                raise ValueError(f"{path}: {name} has the network {cell.family} {cell.size}, gamma {cell.gamma}, twice")
            if cell.gamma is None and registry.find("families", cell.family).bounded:
                raise ValueError(f"{path}: {name} gives no gamma to {cell.family}, whose networks have a bound")
    return params
