"""Trackers: a run's figures round by round, sent where their reader looks."""

from fedtiny.runs.tracking.tracked import Tracked, create, reporting, seen_with
from fedtiny.runs.tracking.trackers import TRACKERS, Subject, Tracker

__all__ = ["TRACKERS", "Subject", "Tracked", "Tracker", "create", "reporting", "seen_with"]
