"""Starting many processes, and knowing one's place among them. Imports no torch: what starts the ranks stays small and quick."""

from modelzoo.launch.board import BOARD_VARIABLE, Board, FolderBoard, board_of
from modelzoo.launch.ctrl_c import CtrlC
from modelzoo.launch.from_python import train_on_ranks
from modelzoo.launch.place import Place, is_started, place_of
from modelzoo.launch.processes import LISTEN_VARIABLE, PARENT_VARIABLE, launch

__all__ = [
    "BOARD_VARIABLE",
    "LISTEN_VARIABLE",
    "PARENT_VARIABLE",
    "Board",
    "CtrlC",
    "FolderBoard",
    "Place",
    "board_of",
    "is_started",
    "launch",
    "place_of",
    "train_on_ranks",
]
