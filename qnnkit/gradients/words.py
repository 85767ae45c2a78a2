"""Temporary"""

import torch

HALVES = (torch.float16, torch.bfloat16)


def warnings(row):
    return []


def diagnose(): ...
