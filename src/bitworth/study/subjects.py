"""What a study asks of its subject, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bitworth.bound.free_wins import FreeWin
from bitworth.recipe import Site
from bitworth.record.schema import SubjectFacts
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import InputSpec


class StudiedSubject(Protocol):
    """The model under study, prepared; its models are files in the workspace."""

    @property
    def base(self) -> str:
        """Precision of the baseline: fp32, bf16 or fp16."""

    @property
    def reference_engine(self) -> str:
        """What computes the reference, and what engines are held against, unoptimized."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Its sites, in the order in which they run."""

    @property
    def attention(self) -> tuple[Site, ...]:
        """Products of two activations; in no group unless asked for."""

    @property
    def every_site(self) -> tuple[Site, ...]:
        """Sites and products of two activations."""

    @property
    def producers(self) -> Mapping[str, str]:
        """Value name to the name of the node that writes it."""

    @property
    def upstream(self) -> Mapping[str, Sequence[str]]:
        """Node name to the names of the values that it reads."""

    @property
    def free_win(self) -> FreeWin | None:
        """What became of its denormal weights; None when it has none."""

    @property
    def denormal_share(self) -> float:
        """Share of the weights that are denormal."""

    def fair_model(self, workspace: Workspace) -> Path:
        """The file that the baseline and every variant start from."""

    def denormal_model(self, workspace: Workspace) -> Path:
        """The same with the weights as given."""

    def given_model(self, workspace: Workspace) -> Path:
        """The model as it was given."""

    def model_sha256(self, path: Path) -> str:
        """Hash of a written model: its structure and every weight."""

    def facts(self, workspace: Workspace) -> SubjectFacts:
        """The record's form of it."""
