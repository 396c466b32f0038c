import signal

from modelzoo.launch.board import FolderBoard
from modelzoo.launch.verdict import Ended, verdict


def test_a_rank_that_stopped_with_the_cause_does_not_say_it_again(tmp_path):
    board = FolderBoard(tmp_path)
    cause = "rank 1: data.jsonl: row 3: label 'x' is not known"
    board.set("failure", {"rank": 1})
    board.set("error/1", f"{cause} (in step 4)")
    board.set("error/0", f"rank 0: {cause}; rank 0 stopped with it in step 4")
    ended = [Ended(1, 2, False, ""), Ended(0, 2, False, "")]
    assert verdict(ended, board, []) == (2, f"{cause} (in step 4)")


def test_a_rank_that_failed_otherwise_is_heard_too(tmp_path):
    board = FolderBoard(tmp_path)
    board.set("failure", {"rank": 1})
    board.set("error/1", "rank 1: no room")
    board.set("error/0", "rank 0: a number is not finite")
    code, text = verdict([Ended(1, 3, False, ""), Ended(0, 5, False, "")], board, [])
    assert code == 3
    assert text == "rank 1: no room\n  rank 0: rank 0: a number is not finite"


def test_ctrl_c_before_the_first_step_is_told_and_one_in_training_was_told_by_the_run(tmp_path):
    board, asked = FolderBoard(tmp_path), [signal.SIGINT]
    ended = [Ended(0, 130, False, ""), Ended(1, 130, False, "")]
    assert verdict(ended, board, asked) == (130, "")
    board.set("error/0", "interrupted")
    assert verdict(ended, board, asked) == (130, "stopped by SIGINT before the first step; nothing was saved")
    assert verdict(ended, board, asked * 2) == (130, "interrupted")
