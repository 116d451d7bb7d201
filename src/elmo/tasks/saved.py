"""A trained task model as a folder, and its answers to new text.

task.json           which task, its settings, labels and scores
model.safetensors   its weights
words.txt           the words of its table
bilm/               the biLM, unless it is the one that comes with the package, untrained
README.md           what it is, for people
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from safetensors.torch import save_file

from elmo.api import EMBEDDED, Model, load, save
from elmo.config import read_json
from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.formats.bundle import check_names, check_shape
from elmo.tasks.all import task_named
from elmo.tasks.encoder import TokenEncoder
from elmo.tasks.run import Result, Trained, freeze
from elmo.tasks.settings import TaskConfig
from elmo.tasks.task import Answer, Example, Task, TaskModel
from elmo.tasks.training import answer_all

ABOUT, WEIGHTS, WORDS, BILM, CARD = "task.json", "model.safetensors", "words.txt", "bilm", "README.md"
