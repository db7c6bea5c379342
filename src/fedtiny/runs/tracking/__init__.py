"""Trackers: a run's figures round by round, sent where their reader looks. One small file each."""

from fedtiny.runs.tracking.names import TRACKERS, create, reporting, seen_with
from fedtiny.runs.tracking.tracked import Tracked
from fedtiny.runs.tracking.tracker import Subject, Tracker

__all__ = ["TRACKERS", "Subject", "Tracked", "Tracker", "create", "reporting", "seen_with"]
